//! The handshake: options until the client takes the only export, whose name is empty.

use super::{LENGTH_MAX, u16, u32, u64, wrong};
use std::io::{self, Read, Write};

const MAGIC: &[u8] = b"NBDMAGIC";
const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REPLY: u64 = 0x0003_e889_0455_65a9;
/// Flags of both sides: fixed newstyle, and no zeros after `EXPORT_NAME`.
const FIXED: u16 = 1;
const NO_ZEROES: u16 = 2;
/// Flags of the export: FLUSH, FUA, TRIM, WRITE_ZEROES, and several connections that see the same.
const EXPORT_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;
/// The most bytes of an option.
const OPTION_MAX: u32 = 8 << 10;

const EXPORT_NAME: u32 = 1;
const ABORT: u32 = 2;
const LIST: u32 = 3;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;

const ACK: u32 = 1;
const SERVER: u32 = 2;
const EXPORT_INFO: u32 = 3;
const UNSUPPORTED: u32 = 1 << 31 | 1;
const INVALID: u32 = 1 << 31 | 3;
const UNKNOWN: u32 = 1 << 31 | 6;
const TOO_BIG: u32 = 1 << 31 | 9;

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Session {
    /// Whether replies are structured.
    pub structured: bool,
}

/// Agrees with a client on the export of so many bytes, whose reads and writes should be of pages; `None`: the client wants nothing more.
///
/// # Errors
/// The client breaks the protocol, or is gone.
pub fn negotiate<S: Read + Write>(stream: &mut S, size: u64, page_bytes: u32) -> io::Result<Option<Session>> {
    stream.write_all(MAGIC)?;
    stream.write_all(&OPTION.to_be_bytes())?;
    stream.write_all(&(FIXED | NO_ZEROES).to_be_bytes())?;
    stream.flush()?;
    let flags = u32(stream)?;
    if flags & u32::from(FIXED) == 0 || flags & !u32::from(FIXED | NO_ZEROES) != 0 {
        return Err(wrong("it does not know the fixed newstyle handshake"));
    }
    let mut session = Session::default();
    loop {
        if u64(stream)? != OPTION {
            return Err(wrong("what should be an option is none"));
        }
        let (option, length) = (u32(stream)?, u32(stream)?);
        if length > OPTION_MAX {
            io::copy(&mut Read::by_ref(stream).take(u64::from(length)), &mut io::sink())?;
            reply(stream, option, TOO_BIG, b"the option is too long")?;
            continue;
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match option {
            EXPORT_NAME if data.is_empty() => {
                stream.write_all(&size.to_be_bytes())?;
                stream.write_all(&EXPORT_FLAGS.to_be_bytes())?;
                let zeros = if flags & u32::from(NO_ZEROES) == 0 { 124 } else { 0 };
                stream.write_all(&[0; 124][..zeros])?;
                stream.flush()?;
                return Ok(Some(session));
            }
            EXPORT_NAME => return Err(wrong("it asks for an export with a name, and there is only one without")),
            ABORT => {
                reply(stream, option, ACK, &[])?;
                return Ok(None);
            }
            LIST if data.is_empty() => {
                reply(stream, option, SERVER, &0u32.to_be_bytes())?;
                reply(stream, option, ACK, &[])?;
            }
            STRUCTURED_REPLY if data.is_empty() => {
                session.structured = true;
                reply(stream, option, ACK, &[])?;
            }
            INFO | GO => {
                let answered = info(stream, option, &data, size, page_bytes)?;
                if answered && option == GO {
                    return Ok(Some(session));
                }
            }
            LIST | STRUCTURED_REPLY => reply(stream, option, INVALID, b"the option has no data")?,
            _ => reply(stream, option, UNSUPPORTED, b"the option is not supported")?,
        }
    }
}

/// Answers `INFO` or `GO`; returns whether the export is the one that there is.
fn info<S: Write>(stream: &mut S, option: u32, data: &[u8], size: u64, page_bytes: u32) -> io::Result<bool> {
    let Some(name) = export_name(data) else {
        reply(stream, option, INVALID, b"lengths in the option do not add up")?;
        return Ok(false);
    };
    if !name.is_empty() {
        reply(stream, option, UNKNOWN, b"there is one export, and its name is empty")?;
        return Ok(false);
    }
    let export = [&0u16.to_be_bytes()[..], &size.to_be_bytes(), &EXPORT_FLAGS.to_be_bytes()].concat();
    reply(stream, option, EXPORT_INFO, &export)?;
    let sizes = [1, page_bytes, LENGTH_MAX].map(u32::to_be_bytes).concat();
    reply(stream, option, EXPORT_INFO, &[&3u16.to_be_bytes()[..], &sizes].concat())?;
    reply(stream, option, ACK, &[])?;
    Ok(true)
}

/// The name in the data of `INFO` or `GO`: its length, the name, how much is asked, and what.
fn export_name(mut data: &[u8]) -> Option<&[u8]> {
    let length = u32(&mut data).ok()? as usize;
    let (name, mut rest) = data.split_at_checked(length)?;
    let asked = usize::from(u16(&mut rest).ok()?);
    (rest.len() == 2 * asked).then_some(name)
}

fn reply<S: Write>(stream: &mut S, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    stream.write_all(&REPLY.to_be_bytes())?;
    stream.write_all(&[option, kind, data.len() as u32].map(u32::to_be_bytes).concat())?;
    stream.write_all(data)?;
    stream.flush()
}
