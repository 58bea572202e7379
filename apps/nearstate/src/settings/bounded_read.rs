//! Reading of a small file, which may be a pipe: `--config <(program)`.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The longest wait for the program at the other end of a pipe. One that fetches a secret takes
/// some seconds; a pipe of which no process has the other end would be waited for for ever.
const PIPE_MAX: Duration = Duration::from_secs(30);

/// Reads a file, or its first `bytes_max` bytes and one more.
///
/// # Errors
/// Those of the file. `TimedOut`, without a number: a pipe, or a device, has not ended in time.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    read_within(path, bytes_max, PIPE_MAX)
}

fn read_within(path: &Path, bytes_max: u64, max: Duration) -> Result<Vec<u8>> {
    if std::fs::metadata(path)?.is_file() {
        return read(path, bytes_max);
    }
    let (sent, received) = channel();
    let owned = path.to_owned();
    // Opening waits for the other end. A thread that does not return ends with the process.
    std::thread::Builder::new().name("ns-read".to_owned()).spawn(move || {
        let _ = sent.send(read(&owned, bytes_max));
    })?;
    received.recv_timeout(max).unwrap_or_else(|_| {
        let what = "is no file, and has not ended within";
        let help = "if it is a pipe, a process has to write it and to close it";
        Err(Error::new(ErrorKind::TimedOut, format!("{what} {max:?}: {help}")))
    })
}

fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::Write as _;

    /// Longer than any pause of a test on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_pipe_is_read_to_its_end_and_one_without_a_writer_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = folder.path().join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
            path
        };
        let error = read_within(&pipe("silent"), 100, Duration::from_millis(50)).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::TimedOut, None));
        assert!(error.to_string().contains("has not ended within 50ms"), "{error}");
        let path = pipe("written");
        let bytes = std::thread::scope(|scope| {
            let reader = scope.spawn(|| read_within(&path, 100, LONG));
            let mut writer = File::options().write(true).open(&path).unwrap();
            writer.write_all(b"text").unwrap();
            drop(writer);
            reader.join().unwrap()
        });
        assert_eq!(bytes.unwrap(), b"text");
        let file = folder.path().join("file");
        std::fs::write(&file, "more").unwrap();
        assert_eq!(read_within(&file, 2, Duration::ZERO).unwrap(), b"mor");
    }
}
