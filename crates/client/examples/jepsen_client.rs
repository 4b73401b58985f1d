//! The client process of `tests/jepsen`: carries out one small operation after the other.
//!
//! It reads commands from standard input, one a line, words separated by spaces, and answers each with one line: `ok WORD …`, or
//! `err CODE MESSAGE`, where CODE names a code of the wire format, or
//! `unsent CODE MESSAGE` if it found no manager and sent nothing. It judges nothing: the driver decides what an error says
//! about the effect of the operation. Start at [`run`].

use bytes::Bytes;
use std::io::BufRead;
use tessera_client::{Client, Error, GetOptions, Options, PutOptions, Sink, StorePath, WriteDone};

/// The words that follow `ok`, or why the operation failed.
type Reply = Result<String, Error>;

/// What the commands are, for a person who starts this by hand.
const HELP: &str = "put PATH TEXT [IF_VERSION] | get PATH | append PATH TEXT | fill PATH SEED BYTES | name SEED BYTES | sum PATH | \
    mkdir PATH | rename FROM TO | unlink PATH | list PATH";

/// Carries out one command line.
fn run(client: &Client, line: &str) -> Reply {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["put", path, text] => put(client, path, text, None),
        ["put", path, text, version] => put(client, path, text, Some(number(version))),
        ["get", path] => read(client, path).map(|file| format!("{} {}", file.version, text(&file.bytes))),
        ["append", path, text] => append(client, path, text),
        ["fill", path, seed, bytes] => {
            let bytes = noise(number(seed), number(bytes) as usize);
            let sum = sum(&bytes);
            client.put(&StorePath::parse(path)?, Bytes::from(bytes), PutOptions::default())?;
            Ok(sum)
        }
        ["name", seed, bytes] => Ok(sum(&noise(number(seed), number(bytes) as usize))),
        ["sum", path] => Ok(sum(&read(client, path)?.bytes)),
        ["mkdir", path] => client.mkdir_all(&StorePath::parse(path)?).map(|_| String::new()),
        ["rename", from, to] => {
            client.rename(&StorePath::parse(from)?, &StorePath::parse(to)?, true).map(|()| String::new())
        }
        ["unlink", path] => client.unlink(&StorePath::parse(path)?, false).map(|()| String::new()),
        ["list", path] => list(client, path),
        _ => panic!("unknown command `{line}`; there are: {HELP}"),
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is no number"))
}

/// Content as one word; `-` is none.
fn text(bytes: &[u8]) -> String {
    match bytes {
        [] => "-".to_string(),
        _ => String::from_utf8_lossy(bytes).replace(char::is_whitespace, "?"),
    }
}

/// The id of the version and the inode.
fn ids(done: &WriteDone) -> String {
    format!("{} {}", done.version, done.ino)
}

/// Replaces a small file, if `if_version` is current (0: if there is none).
fn put(client: &Client, path: &str, text: &str, if_version: Option<u64>) -> Reply {
    let options = PutOptions { if_version, ..PutOptions::default() };
    Ok(ids(&client.put(&StorePath::parse(path)?, Bytes::copy_from_slice(text.as_bytes()), options)?))
}

/// A whole file.
struct File {
    ino: u64,
    version: u64,
    bytes: Vec<u8>,
}

fn read(client: &Client, path: &str) -> Result<File, Error> {
    let mut bytes = Vec::new();
    let (opened, _) = client.get(&StorePath::parse(path)?, Sink::Writer(&mut bytes), GetOptions::default())?;
    Ok(File { ino: opened.attr.ino, version: opened.version.version, bytes })
}

/// Writes behind the end that a read found, if the version it read is current then. Answers with what the file held.
fn append(client: &Client, path: &str, added: &str) -> Reply {
    let file = read(client, path)?;
    let mut handle = client.open_inode(file.ino, true, Some(file.version))?;
    handle.write_at(file.bytes.len() as u64, added.as_bytes())?;
    handle.finish()?;
    Ok(text(&file.bytes))
}

/// The names in a directory with their inodes: `name=ino;…`; `-` if there are none.
fn list(client: &Client, path: &str) -> Reply {
    let entries = client.list(&StorePath::parse(path)?)?;
    let pairs: Vec<String> = entries
        .iter()
        .map(|entry| format!("{}={}", text(&entry.name), entry.attr.as_ref().map_or(0, |attr| attr.ino)))
        .collect();
    Ok(text(pairs.join(";").as_bytes()))
}

/// Bytes that depend on the seed alone (xorshift64, Marsaglia 2003).
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut made = Vec::with_capacity(bytes + 8);
    while made.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        made.extend(state.to_le_bytes());
    }
    made.truncate(bytes);
    made
}

/// FNV-1a of 64 bits. The store's own digests are no witnesses here.
fn sum(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Short deadlines: an operation whose outcome is unknown costs the checker more than one that fails soon.
fn options() -> Options {
    Options {
        worker_threads: 1,
        manager_timeout_ms: 1_500,
        manager_deadline_ms: 8_000,
        put_timeout_ms: 2_000,
        put_deadline_ms: 8_000,
        get_timeout_ms: 1_500,
        get_deadline_ms: 8_000,
        ..Options::default()
    }
}

fn main() {
    let managers = std::env::args().nth(1).expect("usage: jepsen_client MANAGERS");
    // Connects with the first command, and again until it succeeds: a client may start while no manager can be reached.
    let mut connected = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let client = match connected.take().map_or_else(|| Client::connect(&managers, options()), Ok) {
            Ok(client) => connected.insert(client),
            Err(error) => {
                answer(&format!("unsent {:?} {error}", error.code()));
                continue;
            }
        };
        match run(client, &line) {
            Ok(facts) => answer(&format!("ok {facts}")),
            Err(error) => answer(&format!("err {:?} {error}", error.code())),
        }
    }
}

fn answer(line: &str) {
    println!("{}", line.replace('\n', " "));
}
