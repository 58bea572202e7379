//! Output of commands.

use nearstate_model::{Error, Result};
use std::io::{ErrorKind, Write};

/// Writes the result of a command. A reader that has closed the output, such as `head`, wants no
/// more of it: that is no failure.
///
/// # Errors
/// `System`: it cannot be written, for example to a full disk.
pub(crate) fn print(out: &mut (impl Write + ?Sized), text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::System {
            detail: "cannot write to standard output".to_owned(),
            errno: error.raw_os_error().unwrap_or(0),
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed(ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_an_output_that_was_closed_is_no_failure() {
        assert_eq!(print(&mut Closed(ErrorKind::BrokenPipe), "text"), Ok(()));
        assert!(print(&mut Closed(ErrorKind::StorageFull), "text").is_err());
        let mut out = Vec::new();
        print(&mut out, "text").unwrap();
        assert_eq!(out, b"text");
    }
}
