//! The protocol of network block devices, from the side of a client.

use std::io::{self, Cursor, Read, Write};
use tessera_flash::nbd::{Command, Error, Kind, LENGTH_MAX, Reply, Session, negotiate};

const SIZE: u64 = 1 << 20;
const FIXED_NO_ZEROES: u32 = 3;

/// What a client sends, and what the server wrote.
struct Stream {
    input: Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// INFO or GO for an export, asking for nothing.
fn go(name: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name, &[0, 0]].concat()
}

fn shake(flags: u32, options: &[Vec<u8>]) -> (io::Result<Option<Session>>, Vec<u8>) {
    let input = [&flags.to_be_bytes()[..], &options.concat()].concat();
    let mut stream = Stream { input: Cursor::new(input), output: Vec::new() };
    let session = negotiate(&mut stream, SIZE, 4096);
    assert_eq!(&stream.output[..18], b"NBDMAGICIHAVEOPT\0\x03");
    (session, stream.output.split_off(18))
}

/// The replies to options: option, kind, data.
fn replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at(20);
        assert_eq!(head[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        let [option, kind, length] = [8, 12, 16].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()));
        let (data, rest) = rest.split_at(length as usize);
        replies.push((option, kind, data.to_vec()));
        bytes = rest;
    }
    replies
}

#[test]
fn a_client_takes_the_export_with_structured_replies() {
    let options = [option(3, &[]), option(8, &[]), option(6, &go(b"")), option(7, &go(b""))];
    let (session, output) = shake(FIXED_NO_ZEROES, &options);
    assert_eq!(session.unwrap(), Some(Session { structured: true }));
    let replies = replies(&output);
    let kinds: Vec<(u32, u32)> = replies.iter().map(|(option, kind, _)| (*option, *kind)).collect();
    assert_eq!(kinds, [(3, 2), (3, 1), (8, 1), (6, 3), (6, 3), (6, 1), (7, 3), (7, 3), (7, 1)]);
    // The size, and flags: FLUSH, FUA, TRIM, WRITE_ZEROES, several connections.
    assert_eq!(replies[3].2, [&[0, 0][..], &SIZE.to_be_bytes(), &[1, 0x6d]].concat());
}

#[test]
fn an_old_client_takes_it_by_export_name() {
    let (session, output) = shake(1, &[option(1, &[])]);
    assert_eq!((session.unwrap(), output.len()), (Some(Session::default()), 8 + 2 + 124));
    let (_, output) = shake(FIXED_NO_ZEROES, &[option(1, &[])]);
    assert_eq!(output, [&SIZE.to_be_bytes()[..], &[1, 0x6d]].concat());
    let (session, output) = shake(FIXED_NO_ZEROES, &[option(2, &[])]);
    assert_eq!((session.unwrap(), replies(&output)), (None, vec![(2, 1, vec![])]));
}

#[test]
fn clients_that_lie_are_refused() {
    let (session, output) = shake(
        FIXED_NO_ZEROES,
        &[
            option(7, &go(b"other")),
            option(7, &[255, 255, 255, 255, 0, 0]),
            option(7, b"x"),
            option(8, b"x"),
            option(99, b"x"),
            option(7, &vec![0; 9000]),
            option(7, &go(b"")),
        ],
    );
    assert!(session.unwrap().is_some(), "it may still take the export");
    let errors: Vec<u32> = replies(&output).iter().map(|(_, kind, _)| *kind & 0xffff).take(6).collect();
    assert_eq!(errors, [6, 3, 3, 3, 1, 9], "unknown, three times invalid, unsupported, too big");
    for (flags, options) in [
        (0, vec![]),
        (FIXED_NO_ZEROES | 8, vec![]),
        (FIXED_NO_ZEROES, vec![b"what is this, it is no option".to_vec()]),
        (FIXED_NO_ZEROES, vec![option(1, b"other")]),
        (FIXED_NO_ZEROES, vec![option(7, &go(b""))[..20].to_vec()]),
    ] {
        assert!(shake(flags, &options).0.is_err(), "{flags} {options:?}");
    }
}

fn request(flags: u16, number: u16, offset: u64, length: u32, data: &[u8]) -> Vec<u8> {
    let head = [&0x2560_9513u32.to_be_bytes()[..], &flags.to_be_bytes(), &number.to_be_bytes(), &77u64.to_be_bytes()];
    [&head.concat()[..], &offset.to_be_bytes(), &length.to_be_bytes(), data].concat()
}

fn read(bytes: &[u8]) -> Command {
    let mut input = bytes;
    let command = Command::read(&mut input, SIZE).unwrap().unwrap();
    assert!(input.is_empty() && command.cookie == 77, "{command:?}");
    command
}

#[test]
fn commands_are_read_and_wrong_ones_get_an_error_each() {
    let write = read(&request(1, 1, 512, 3, b"abc"));
    assert_eq!((write.kind, write.fua, write.offset, &write.data[..]), (Ok(Kind::Write), true, 512, &b"abc"[..]));
    for (flags, number, offset, length, kind) in [
        (0, 0, SIZE - 4, 4, Ok(Kind::Read)),
        (4, 0, 0, 4, Ok(Kind::Read)),
        (0, 3, 9 * SIZE, 0, Ok(Kind::Flush)),
        (0, 4, 0, SIZE as u32, Ok(Kind::Trim)),
        (2, 6, 0, 4096, Ok(Kind::Zero { stay: true })),
        (0, 0, SIZE - 4, 5, Err(Error::Invalid)),
        (0, 0, u64::MAX, 5, Err(Error::Invalid)),
        (0, 6, SIZE, 1, Err(Error::NoSpace)),
        (8, 0, 0, 4, Err(Error::Invalid)),
        (0, 0, 0, LENGTH_MAX + 1, Err(Error::Invalid)),
        (0, 7, 0, 4, Err(Error::Unsupported)),
    ] {
        assert_eq!(read(&request(flags, number, offset, length, &[])).kind, kind, "{number} at {offset}+{length}");
    }
    assert_eq!(read(&request(0, 1, SIZE - 1, 2, b"ab")).kind, Err(Error::NoSpace));
    let long = vec![0; LENGTH_MAX as usize + 1];
    let refused = read(&request(0, 1, 0, LENGTH_MAX + 1, &long));
    assert_eq!((refused.kind, refused.data.len()), (Err(Error::Invalid), 0), "its data are read past");
    let end = |bytes: &[u8]| Command::read(&mut &bytes[..], SIZE);
    assert!(end(&[]).unwrap().is_none() && end(&request(0, 2, 0, 0, &[])).unwrap().is_none());
    assert!(end(&request(0, 1, 0, 9, b"short")).is_err() && end(&[9; 28]).is_err());
}

#[test]
fn replies_are_encoded_as_the_client_asked_for() {
    let (simple, structured) = (Session::default(), Session { structured: true });
    let data = Reply { cookie: 77, data: Some((512, b"abc".to_vec())), error: None };
    assert_eq!(data.encode(simple), [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &77u64.to_be_bytes(), b"abc"].concat());
    let head = |kind: [u8; 2], length| {
        [&[0x66, 0x8e, 0x33, 0xef, 0, 1][..], &kind, &77u64.to_be_bytes(), &[0, 0, 0, length]].concat()
    };
    assert_eq!(data.encode(structured), [&head([0, 1], 11)[..], &512u64.to_be_bytes(), b"abc"].concat());
    let done = Reply { cookie: 77, data: None, error: None };
    assert_eq!(done.encode(structured), head([0, 0], 0));
    let failed = Reply { cookie: 77, data: None, error: Some(Error::NoSpace) };
    assert_eq!(failed.encode(simple)[4..8], [0, 0, 0, 28]);
    assert_eq!(failed.encode(structured), [&head([0x80, 1], 6)[..], &[0, 0, 0, 28, 0, 0]].concat());
}
