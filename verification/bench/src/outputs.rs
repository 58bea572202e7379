//! The output files of a command. They are checked before anything is started, so that hours of
//! measuring do not end at a missing directory.

use crate::protocol::error_text;
use crate::reaper::system;
use crate::saved;
use nearstate_model::{Error, Result};
use std::io::Write;
use std::path::Path;

/// Checks that each of `outputs` (an option of the command line, and its file) can be written, and
/// that none would replace another or one of `inputs`. Existing files stay untouched.
pub fn check(outputs: &[(&str, Option<&Path>)], inputs: &[&Path]) -> Result<()> {
    let mut taken: Vec<_> = inputs
        .iter()
        .map(|path| (saved::resolved(path), "is the run that is read".to_owned()))
        .collect();
    for (option, path) in outputs {
        let Some(path) = path else { continue };
        let resolved = saved::resolved(path);
        if let Some((_, what)) = taken.iter().find(|(there, _)| *there == resolved) {
            return Err(bad_argument!(
                "{option} {}: it {what}, and would be replaced: give another file",
                path.display()
            ));
        }
        saved::can_write(path)?;
        taken.push((resolved, format!("is the file of {option}")));
    }
    Ok(())
}

/// Prints the results of a command.
pub fn print(out: &mut impl Write, text: &str) -> Result<()> {
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| system("writing the results", &e))
}

/// Writes a page to a file, if one was requested.
pub fn write_page(path: Option<&Path>, html: impl FnOnce() -> String) -> Result<()> {
    path.map_or(Ok(()), |path| saved::write_file(path, html().as_bytes()))
}

/// All failures as one error: a later failure must not hide an earlier one.
pub fn together(mut failures: Vec<Error>) -> Result<()> {
    match failures.pop() {
        None => Ok(()),
        Some(only) if failures.is_empty() => Err(only),
        Some(last) => {
            failures.push(last);
            let all: Vec<String> = failures.iter().map(error_text).collect();
            Err(backend_error!("{}", all.join("; ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_output_may_replace_neither_another_nor_an_input() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&a, "what is there").unwrap();
        std::os::unix::fs::symlink(&a, folder.path().join("link")).unwrap();
        let said = |one: &Path, other: &Path, inputs: &[&Path]| {
            let outputs = [("--save", Some(one)), ("--report", Some(other))];
            check(&outputs, inputs).err().map(|e| e.to_string()).unwrap_or_default()
        };
        let other = folder.path().join("x/../b");
        fs::create_dir(folder.path().join("x")).unwrap();
        for (one, two) in [(&a, &folder.path().join("link")), (&b, &other)] {
            let refused = said(one, two, &[]);
            assert!(refused.contains("--report") && refused.contains("of --save"), "{refused}");
        }
        let refused = said(&b, &a, &[&folder.path().join("link")]);
        assert!(refused.contains("the run that is read"), "{refused}");
        assert_eq!(said(&a, &b, &[]), "");
        assert_eq!(fs::read_to_string(&a).unwrap(), "what is there");
        assert!(!b.exists(), "it was only looked at");
    }

    #[test]
    fn unwritable_outputs_are_rejected_early() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        for (path, why) in [("nowhere/a", "nowhere/a"), ("file/a", "file/a"), ("", "is a folder")] {
            let path = folder.path().join(path);
            let refused = check(&[("--save", None), ("--html", Some(&path))], &[]).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        for device in ["/dev/full", "/dev/null"] {
            check(&[("--save", Some(Path::new(device)))], &[]).unwrap();
        }
    }

    #[test]
    fn every_failure_is_reported_once() {
        let full = |what: &str| Error::Full { detail: what.to_owned(), heap: None };
        assert_eq!(together(Vec::new()), Ok(()));
        assert_eq!(together(vec![full("a")]), Err(full("a")));
        let both = together(vec![full("a"), backend_error!("b")]);
        assert_eq!(both.unwrap_err().to_string(), "back-end: full: a; b");
    }
}
