//! Sends and receives descriptors over a Unix socket, and rings the doorbell of a ring.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most descriptors in one message: the two of a region.
const DESCRIPTORS_MAX: usize = 2;

/// Sends bytes, and descriptors with the first byte. Never blocks. Returns the number of bytes
/// sent.
///
/// # Errors
/// Errors of the kernel; `WouldBlock` if the socket is full.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Receives bytes and their descriptors. Blocks as the socket does.
///
/// # Errors
/// Errors of the kernel.
pub fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(into)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    Ok((received.bytes, descriptors))
}

/// Rings the doorbell of the other side. Never blocks: a full socket contains enough doorbells.
pub fn ring_doorbell(socket: impl AsFd) {
    // The reader of an ended socket detects the end.
    let _ = rustix::net::send(socket, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_arrives_with_the_first_byte_and_refers_to_the_same_file() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        (&one).write_all(b"before").unwrap();
        assert_eq!(send(&one, b"with it", &[file.as_fd()]).unwrap(), 7);
        let mut bytes = [0; 100];
        let (count, none) = receive(&other, &mut bytes[..6]).unwrap();
        assert_eq!((&bytes[..count], none.len()), (&b"before"[..], 0));
        let (count, mut one_file) = receive(&other, &mut bytes).unwrap();
        assert_eq!((&bytes[..count], one_file.len()), (&b"with it"[..], 1));
        file.write_all(b"shared").unwrap();
        let mut theirs = File::from(one_file.pop().unwrap());
        theirs.rewind().unwrap();
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        assert_eq!(text, "shared");
    }

    #[test]
    fn ringing_the_doorbell_never_blocks() {
        let (one, other) = UnixStream::pair().unwrap();
        (0..100_000).for_each(|_| ring_doorbell(&one));
        drop(other);
        ring_doorbell(&one);
    }
}
