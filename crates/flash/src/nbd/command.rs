//! Commands and their replies.

use super::{LENGTH_MAX, Session, u16, u32, u64, wrong};
use std::io::{self, Read};

const REQUEST: u32 = 0x2560_9513;
const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;
/// The last chunk of a structured reply.
const DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_DATA: u16 = 1;
const CHUNK_ERROR: u16 = 1 << 15 | 1;

/// Flags of a command: it is durable before it is answered, zeros stay allocated, and it is asked for in one piece.
const FUA: u16 = 1;
const NO_HOLE: u16 = 1 << 1;
const DF: u16 = 1 << 2;

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Makes durable what was written.
    Flush,
    /// Says that the bytes are not needed any more.
    Trim,
    /// Makes bytes zero; if `stay`, flash keeps pages for them.
    Zero {
        /// Whether pages stay allocated.
        stay: bool,
    },
}

/// Why a command failed, by the protocol's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Error {
    /// There is no power, or the bytes cannot be read or written.
    Io = 5,
    /// The range or the flags make no sense.
    Invalid = 22,
    /// A write beyond the end, or what holds the bytes is full.
    NoSpace = 28,
    /// No such command.
    Unsupported = 95,
}

/// A command of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// What it does, or why it cannot be done.
    pub kind: Result<Kind, Error>,
    /// Whether it is to be durable before it is answered.
    pub fua: bool,
    /// The client's number for it.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// What is written.
    pub data: Vec<u8>,
}

impl Command {
    /// Reads the next command, for an export of so many bytes; `None`: the client wants nothing more.
    ///
    /// # Errors
    /// The client breaks the protocol, or is gone.
    pub fn read(input: &mut impl Read, size: u64) -> io::Result<Option<Command>> {
        let magic = match u32(input) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            magic => magic?,
        };
        if magic != REQUEST {
            return Err(wrong("what should be a command is none"));
        }
        let (flags, number, cookie) = (u16(input)?, u16(input)?, u64(input)?);
        let (offset, length) = (u64(input)?, u32(input)?);
        if number == 2 {
            return Ok(None);
        }
        let mut data = Vec::new();
        if number == 1 && length <= LENGTH_MAX {
            data.resize(length as usize, 0);
            input.read_exact(&mut data)?;
        } else if number == 1 {
            io::copy(&mut input.by_ref().take(u64::from(length)), &mut io::sink())?;
        }
        let kind = check(number, flags, offset, length, size);
        Ok(Some(Command { kind, fua: flags & FUA != 0, cookie, offset, length, data }))
    }
}

fn check(number: u16, flags: u16, offset: u64, length: u32, size: u64) -> Result<Kind, Error> {
    let (kind, known) = match number {
        0 => (Kind::Read, FUA | DF),
        1 => (Kind::Write, FUA),
        3 => (Kind::Flush, FUA),
        4 => (Kind::Trim, FUA),
        6 => (Kind::Zero { stay: flags & NO_HOLE != 0 }, FUA | NO_HOLE),
        _ => return Err(Error::Unsupported),
    };
    let is_within = kind == Kind::Flush || offset.checked_add(u64::from(length)).is_some_and(|end| end <= size);
    let is_short = !matches!(kind, Kind::Read | Kind::Write) || length <= LENGTH_MAX;
    match (flags & !known == 0 && is_short, is_within) {
        (true, true) => Ok(kind),
        (true, false) if matches!(kind, Kind::Write | Kind::Zero { .. }) => Err(Error::NoSpace),
        _ => Err(Error::Invalid),
    }
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The client's number for the command.
    pub cookie: u64,
    /// Where the bytes of a READ begin, and the bytes; `None`: another command.
    pub data: Option<(u64, Vec<u8>)>,
    /// Why it failed.
    pub error: Option<Error>,
}

impl Reply {
    /// The bytes to send.
    pub fn encode(&self, session: Session) -> Vec<u8> {
        let error = self.error.map_or(0, |error| error as u32);
        if !session.structured {
            let head = [&SIMPLE.to_be_bytes()[..], &error.to_be_bytes(), &self.cookie.to_be_bytes()].concat();
            return [&head[..], self.data.as_ref().map_or(&[], |(_, bytes)| bytes)].concat();
        }
        let (kind, payload) = match &self.data {
            // A code, and a message of no bytes.
            _ if error != 0 => (CHUNK_ERROR, [&error.to_be_bytes()[..], &[0, 0]].concat()),
            Some((offset, bytes)) if !bytes.is_empty() => (CHUNK_DATA, [&offset.to_be_bytes()[..], bytes].concat()),
            _ => (CHUNK_NONE, Vec::new()),
        };
        let head =
            [&STRUCTURED.to_be_bytes()[..], &DONE.to_be_bytes(), &kind.to_be_bytes(), &self.cookie.to_be_bytes()];
        [&head.concat()[..], &(payload.len() as u32).to_be_bytes(), &payload].concat()
    }
}
