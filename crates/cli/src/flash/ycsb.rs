//! CONA under YCSB's load and workload A, for `tessera flash record`.

use crate::args::RecordConaArgs;
use crate::exit::{Exit, Failure, Outcome, bail};
use crate::term::Out;
use std::sync::Arc;
use std::time::Instant;
use tessera_cona::{Durability, Error, Options, Store};
use tessera_disk::{Disk, RealDisk, SplitMix64};
use tessera_flash::synthetic::Zipf;

/// YCSB's constant: how uneven the choice of records is.
const SKEW: f64 = 0.99;

/// A key of 20 bytes. Neighbours in number are none in order.
fn key(record: u64) -> [u8; 20] {
    let mut key = *b"user0000000000000000";
    let mut rest = mixed(record);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn mixed(number: u64) -> u64 {
    SplitMix64::new(number).next_u64()
}

/// Loads the records, then reads and updates them.
pub fn run(args: &RecordConaArgs, out: Out, wrap: impl FnOnce(Arc<dyn Disk>) -> Arc<dyn Disk>) -> Outcome {
    let disk = RealDisk::create(&args.dir).map_err(failed)?;
    let is_empty = disk.list("").and_then(|files| Ok(files.is_empty() && disk.list_dirs("")?.is_empty()));
    if !is_empty.map_err(failed)? {
        bail!(Exit::Conflict, "{}: is not empty; name an empty or new directory with --dir", args.dir.display());
    }
    let durability = if args.sync { Durability::Sync } else { Durability::Os };
    let options = Options { buffer_bytes: args.buffer, durability, ..Options::default() };
    let store = Store::open_on(wrap(Arc::new(disk)), "", options).map_err(refused)?;
    let (mut rng, mut value) = (SplitMix64::new(1), vec![0; args.value_bytes as usize]);
    let put = |record: u64, value: &mut [u8], rng: &mut SplitMix64| {
        value.chunks_mut(8).for_each(|part| part.copy_from_slice(&rng.next_u64().to_le_bytes()[..part.len()]));
        store.put(&key(record), value).map_err(failed)
    };
    let begun = Instant::now();
    (0..args.records).try_for_each(|record| put(record, &mut value, &mut rng))?;
    out.note(format!("{} records loaded in {:.1} s", args.records, begun.elapsed().as_secs_f64()));
    let (begun, zipf) = (Instant::now(), Zipf::new(args.records, SKEW));
    for _ in 0..args.ops {
        // Popular records are scattered over the keys.
        let record = mixed(zipf.draw(&mut rng)) % args.records;
        if rng.next_u64() & 1 == 0 {
            put(record, &mut value, &mut rng)?;
        } else if store.get(&key(record)).map_err(failed)?.is_none() {
            bail!(Exit::Corrupt, "record {record} is not there although it was stored");
        }
    }
    store.flush().and_then(|()| store.settle()).map_err(failed)?;
    out.note(format!("{} operations in {:.1} s", args.ops, begun.elapsed().as_secs_f64()));
    let amplification = store.stats().write_amplification();
    out.note(format!("CONA wrote {amplification:.2} bytes for each byte of keys and values"));
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
}

/// Why a store cannot be made.
fn refused(error: Error) -> Failure {
    match error {
        Error::BadOption { .. } => Failure::usage(error),
        error => failed(error),
    }
}
