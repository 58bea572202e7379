//! Sizes that are accepted and refused, and what `region create` prints.

use super::*;
use clap::Parser;

#[derive(Debug, Parser)]
pub(super) struct TestCli {
    #[command(subcommand)]
    pub(super) command: RegionCommand,
}

#[test]
fn sizes_and_modes_are_parsed() {
    assert_eq!(parse_bytes("64MiB"), Ok(64 << 20));
    assert_eq!(parse_bytes("4G"), Ok(4 << 30));
    assert_eq!(parse_bytes("4096"), Ok(4096));
    assert!(parse_bytes("4 parsecs").is_err());
    assert!(parse_bytes("").is_err());
    assert!(parse_bytes("99999999T").is_err());
    assert_eq!(parse_mode("660"), Ok(0o660));
    assert!(parse_mode("999").is_err());
}

#[test]
fn drop_of_a_link_removes_both_and_names_both() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("r"), folder.path().join("link"));
    std::os::unix::fs::symlink("r", &link).unwrap();
    let mut out = Vec::new();
    for words in [["create", "--max=64MiB"], ["inspect", "--json"], ["drop", "--any-owner"]] {
        out.clear();
        let arguments = ["region", words[0], words[1], link.to_str().unwrap()];
        run(TestCli::try_parse_from(arguments).unwrap().command, &mut out).unwrap();
    }
    let text = String::from_utf8(out).unwrap();
    let file_name = std::fs::canonicalize(folder.path()).unwrap().join("r");
    let link_name = file_name.with_file_name("link");
    let (first, second) = (file_name.display(), link_name.display());
    assert_eq!(text, format!("deleted {first} and the symbolic link {second}\n"));
    assert!(!file.exists() && std::fs::symlink_metadata(&link).is_err());
    // The same, as JSON.
    std::os::unix::fs::symlink("r", &link).unwrap();
    let mut out = Vec::new();
    for words in [["create", "--max=64MiB"], ["drop", "--json"]] {
        out.clear();
        let arguments = ["region", words[0], words[1], link.to_str().unwrap()];
        run(TestCli::try_parse_from(arguments).unwrap().command, &mut out).unwrap();
    }
    let json: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["file"].as_str(), file_name.to_str());
    assert_eq!(json["links"][0].as_str(), link_name.to_str());
    assert!(!file.exists() && std::fs::symlink_metadata(&link).is_err());
}

#[test]
fn create_prints_what_it_created() {
    let folder = tempfile::tempdir().unwrap();
    let create = |name: &str, more: &[&str]| {
        let path = folder.path().join(name);
        let line = ["region", "create", path.to_str().unwrap(), "--max", "64MiB"];
        let command = TestCli::try_parse_from(line.iter().chain(more)).unwrap().command;
        let mut out = Vec::new();
        run(command, &mut out).unwrap();
        (path.display().to_string(), String::from_utf8(out).unwrap())
    };
    let (path, text) = create("r", &["--mode", "660"]);
    assert!(text.starts_with(&format!("created  {path}\nheap     64.0 MiB at most\nfile ")));
    assert!(text.contains(" allocated, 196.1 MiB at most\npages    4 KiB, pins "), "{text}");
    let end = format!("mode     660\nnext     nearstate serve --region {path}\n");
    assert!(text.ends_with(&end), "{text}");
    let (path, text) = create("j", &["--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((json["path"].as_str(), json["mode"].as_str()), (Some(&*path), Some("600")));
    assert_eq!(
        (json["bytes_max"].as_u64(), json["page_bytes"].as_u64()),
        (Some(64 << 20), Some(4096))
    );
}
