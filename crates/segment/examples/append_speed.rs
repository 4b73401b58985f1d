//! Measures how fast fragments reach a directory: `cargo run --release -p tessera-segment --example append_speed -- DIR
//! [fragment KiB] [GiB]`.
//!
//! Prints the rate of one copy in memory (the lower bound of the cost), of plain `pwrite` into a file there, of appends
//! and syncs through the store, and of verified reads, each in GB/s of fragment data. Removes the directory's files at
//! the end.

use std::sync::Arc;
use std::time::Instant;

use tessera_disk::{Disk, Identity, OpenMode, RealDisk};
use tessera_segment::{FragmentId, Options, Record, RecordMeta, SegmentStore};

const BATCH: usize = 16;

fn report(what: &str, bytes: usize, start: Instant) {
    println!("{what:<28} {:6.2} GB/s", bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let dir = args.get(1).ok_or("usage: append_speed DIR [fragment KiB] [GiB]")?;
    let len = args.get(2).map_or(Ok(256), |n| n.parse::<usize>())? << 10;
    let total = args.get(3).map_or(Ok(2), |n| n.parse::<usize>())? << 30;
    let count = total / len / BATCH * BATCH;
    let root = std::path::Path::new(dir).join("append-speed");
    let disk = RealDisk::create(&root)?;
    Identity { cluster_id: [1; 16], disk_uuid: [2; 16], created_ms: 0 }.create(&disk)?;
    let data: Vec<u8> = (0..len * BATCH).map(|i| (i % 251) as u8).collect();
    let groups = vec![0; 64 * 32];
    let crcs: Vec<u32> = data.chunks(len).map(tessera_accel::checksum::crc32c).collect();

    let mut copy = vec![0; data.len()];
    let start = Instant::now();
    for _ in 0..count / BATCH {
        copy.copy_from_slice(std::hint::black_box(&data));
        std::hint::black_box(&copy);
    }
    report("copy in memory", count * len, start);

    let file = disk.open("plain", OpenMode::Create)?;
    let start = Instant::now();
    for nth in 0..count / BATCH {
        file.write_at((nth * data.len()) as u64, &data)?;
    }
    report("plain pwrite", count * len, start);
    disk.remove("plain")?;
    drop(file);

    let options = Options { reserve_bytes: 0, ..Options::default() };
    let (store, _) = SegmentStore::open(Arc::new(disk.clone()), options.clone(), &mut |_| {})?;
    let id = |nth: usize| FragmentId { chunk_id: nth as u64, fragment: 0 };
    let start = Instant::now();
    for first in (0..count).step_by(BATCH) {
        let batch: Vec<Record<'_>> = data
            .chunks(len)
            .zip(&crcs)
            .enumerate()
            .map(|(nth, (data, &data_crc))| Record {
                id: id(first + nth),
                meta: RecordMeta::default(),
                groups: &groups,
                data,
                data_crc,
            })
            .collect();
        store.append(&batch)?;
        store.sync()?;
    }
    report("append and sync", count * len, start);

    let start = Instant::now();
    let mut buf = vec![0; len];
    for nth in 0..count {
        store.get(id(nth))?.ok_or("a fragment is missing")?.read_data(0, &mut buf)?;
    }
    report("read", count * len, start);
    let start = Instant::now();
    for nth in 0..count {
        store.get(id(nth))?.ok_or("a fragment is missing")?.read_verified()?;
    }
    report("read and check", count * len, start);
    drop(store);
    let start = Instant::now();
    let (_, opened) = SegmentStore::open(Arc::new(disk), options, &mut |_| {})?;
    println!("{:<28} {:6.0} ms for {} records", "open", start.elapsed().as_secs_f64() * 1e3, opened.records);
    std::fs::remove_dir_all(root)?;
    Ok(())
}
