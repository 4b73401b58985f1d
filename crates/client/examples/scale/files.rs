//! Small files: their names, lengths and bytes follow from their numbers, so that any of them can be checked later.
//!
//! Lengths are 100 B to 64 KiB, by a Pareto law with exponent 1 within these bounds: half of the files have less than 200 bytes, one in
//! seven hundred more than 32 KiB, the mean is 650 bytes. No two files have equal bytes. One unit in ten goes to one directory, which
//! becomes a very long one; the others fill directories one after the other. Names do not come in their order.

use crate::Reply;
use bytes::{Bytes, BytesMut};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tessera_client::{Cancel, Client, GetOptions, Owner, PACK_FILES, PutOptions, Sink, SmallPut, StorePath};
use tessera_wire::meta::NewEntry;

/// The directory of everything.
pub const ROOT: &str = "tess:/scale";
/// The directory that one unit in ten goes to.
const LONG: &str = "long";
/// Files that are stored at once.
const UNIT_FILES: u64 = PACK_FILES as u64;
const LEAST_BYTES: f64 = 100.0;
const MOST_BYTES: f64 = 65_536.0;

/// SplitMix64 (Steele, Lea, Flood 2014): the number after `state`.
fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Length of a file: the inverse of the bounded Pareto law's distribution function.
fn len_bytes(number: u64) -> usize {
    let share = mixed(number.wrapping_add(1 << 60)) as f64 / u64::MAX as f64;
    (LEAST_BYTES / (1.0 - share * (1.0 - LEAST_BYTES / MOST_BYTES))) as usize
}

/// The bytes that begin with `seed`.
fn bytes_of(seed: u64, len: usize) -> Bytes {
    let mut bytes = BytesMut::zeroed(len);
    for (i, piece) in bytes.chunks_mut(8).enumerate() {
        piece.copy_from_slice(&mixed(seed << 20 | i as u64).to_le_bytes()[..piece.len()]);
    }
    bytes.freeze()
}

fn content(number: u64) -> Bytes {
    bytes_of(number, len_bytes(number))
}

/// How many files there will be, in how many directories beside the long one.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub files: u64,
    pub directories: u64,
}

impl Plan {
    /// Path of a file.
    fn path(self, number: u64) -> Result<StorePath, tessera_client::PathError> {
        let name = format!("{:016x}", mixed(number));
        match (number / UNIT_FILES) % 10 {
            0 => StorePath::parse(&format!("{ROOT}/{LONG}/{name}")),
            _ => StorePath::parse(&format!("{ROOT}/d{:05}/{name}", number * self.directories / self.files)),
        }
    }
}

/// Makes the directories, `d00000` and so on, and the long one.
pub fn make_directories(client: &Client, plan: Plan) -> Reply {
    let parent = client.mkdir_all(&StorePath::parse(ROOT)?)?.ino;
    let entry = |name: String| NewEntry { parent, name: name.into_bytes(), mode: 0o755, ..NewEntry::default() };
    let entries: Vec<NewEntry> =
        (0..plan.directories).map(|i| format!("d{i:05}")).chain([LONG.into()]).map(entry).collect();
    let began = Instant::now();
    for made in client.make_many(&entries)? {
        made?;
    }
    Ok(format!("directories={} seconds={:.6}", entries.len(), began.elapsed().as_secs_f64()))
}

/// Runs `work` for the numbers below `count` on several threads.
fn spread<T: Send>(threads: u64, count: u64, work: impl Fn(u64) -> Result<T, Failed> + Sync) -> Result<Vec<T>, Failed> {
    let next = AtomicU64::new(0);
    let some = || {
        let numbers =
            std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < count));
        numbers.map(&work).collect::<Result<Vec<T>, Failed>>()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(some)).collect();
        let mut done = Vec::new();
        for thread in running {
            done.extend(thread.join().map_err(|_| "a thread panicked")??);
        }
        Ok(done)
    })
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Stores files, by units.
pub fn put(client: &Client, numbers: Range<u64>, threads: u64, plan: Plan) -> Reply {
    let (began, cancel) = (Instant::now(), Cancel::default());
    let units = (numbers.end - numbers.start).div_ceil(UNIT_FILES);
    let unit = |unit: u64| -> Result<(u64, u64), Failed> {
        let from = numbers.start + unit * UNIT_FILES;
        let to = (from + UNIT_FILES).min(numbers.end);
        let small = |number| -> Result<SmallPut, Failed> {
            let path = plan.path(number)?;
            Ok(SmallPut { path, content: content(number), mtime_ns: 0, owner: Owner::default() })
        };
        let files = (from..to).map(small).collect::<Result<Vec<_>, _>>()?;
        let bytes = files.iter().map(|file| file.content.len() as u64).sum();
        let held = client.hold(bytes, &cancel).ok_or("cancelled")?;
        let mut new_bytes = 0;
        for done in client.put_small(files, &[], &held, &cancel) {
            new_bytes += done?.new_bytes;
        }
        Ok((bytes, new_bytes))
    };
    let done = spread(threads, units, unit)?;
    let (bytes, new_bytes) = done.iter().fold((0, 0), |(bytes, new), unit| (bytes + unit.0, new + unit.1));
    Ok(format!("bytes={bytes} new_bytes={new_bytes} seconds={:.6}", began.elapsed().as_secs_f64()))
}

/// Reads `count` of the first `written` files, drawn at random, and compares every byte.
pub fn verify(client: &Client, written: u64, count: u64, plan: Plan) -> Reply {
    let began = Instant::now();
    let one = |i: u64| -> Result<u64, Failed> {
        let number = mixed(i ^ written) % written;
        let expected = content(number);
        let mut read = vec![0; expected.len()];
        let path = plan.path(number)?;
        let (_, len) = client.get(&path, Sink::Slice(&mut read), GetOptions::default())?;
        match len == expected.len() as u64 && read[..] == expected[..] {
            true => Ok(len),
            false => Err(format!("{path}: other bytes came back").into()),
        }
    };
    let bytes: u64 = spread(1, count, one)?.into_iter().sum();
    Ok(format!("files={count} bytes={bytes} seconds={:.6}", began.elapsed().as_secs_f64()))
}

/// Looks up `count` of the first `written` files, drawn at random.
pub fn stat(client: &Client, written: u64, count: u64, threads: u64, plan: Plan) -> Reply {
    let began = Instant::now();
    let one = |i: u64| -> Result<(), Failed> {
        let number = mixed(i ^ written << 1) % written;
        match client.stat(&plan.path(number)?)?.size_bytes == len_bytes(number) as u64 {
            true => Ok(()),
            false => Err(format!("file {number} has another length").into()),
        }
    };
    spread(threads, count, one)?;
    Ok(format!("files={count} seconds={:.6}", began.elapsed().as_secs_f64()))
}

/// Stores one file of 4 KiB by itself and reads it back.
pub fn probe(client: &Client, number: u64) -> Reply {
    let path = StorePath::parse(&format!("{ROOT}/probe{}", number % 64))?;
    let bytes = bytes_of(number | 1 << 40, 4096);
    let began = Instant::now();
    client.put(&path, bytes.clone(), PutOptions::default())?;
    let put_ms = began.elapsed().as_secs_f64() * 1e3;
    let (mut read, began) = (vec![0; bytes.len()], Instant::now());
    client.get(&path, Sink::Slice(&mut read), GetOptions::default())?;
    let get_ms = began.elapsed().as_secs_f64() * 1e3;
    match read[..] == bytes[..] {
        true => Ok(format!("put_ms={put_ms:.3} get_ms={get_ms:.3}")),
        false => Err(format!("{path}: other bytes came back").into()),
    }
}
