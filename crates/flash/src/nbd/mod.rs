//! The protocol of network block devices, as far as a server needs it (NetworkBlockDevice/nbd, doc/proto.md): fixed newstyle
//! handshake, FLUSH, FUA, TRIM, WRITE_ZEROES, structured replies and several connections. It has no sockets: [`negotiate`] and
//! [`Command::read`] work on anything that can be read and written.

mod command;
mod handshake;

pub use command::{Command, Error, Kind, Reply};
pub use handshake::{Session, negotiate};

use std::io::{self, Read};

/// The most bytes of a READ or WRITE, as the protocol recommends.
pub const LENGTH_MAX: u32 = 32 << 20;

fn bytes<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u16(input: &mut impl Read) -> io::Result<u16> {
    bytes(input).map(u16::from_be_bytes)
}

fn u32(input: &mut impl Read) -> io::Result<u32> {
    bytes(input).map(u32::from_be_bytes)
}

fn u64(input: &mut impl Read) -> io::Result<u64> {
    bytes(input).map(u64::from_be_bytes)
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the client breaks the protocol of NBD: {what}"))
}
