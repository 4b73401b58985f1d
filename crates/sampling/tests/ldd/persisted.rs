//! Sets that are written to disks and read back.

use crate::{Disks, text, word_count};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tessera_sampling::ldd::{DirectoryLog, DiskLog, Ldd, Lines, Logs, PartitionSampling, Place};
use tessera_sampling::schedule::Shares;

fn sorted<T: Ord>(mut records: Vec<T>) -> Vec<T> {
    records.sort();
    records
}

#[test]
fn a_persisted_set_is_read_from_its_places() {
    let disks = Disks::new(3);
    (0..3).for_each(|disk| disks.write(disk, "text", &text(disk, 600)));
    let logs = Logs::in_directories(&disks.directories).unwrap();
    let lines = Ldd::read(disks.shared(), 512, Lines).unwrap();
    let kept = lines.filter(|line| line.len() > 10).persist(&logs).unwrap();
    let mut ranges: HashMap<String, Vec<(u64, u64)>> = HashMap::new();
    for partition in kept.partitions() {
        let Place::Disk { disk, file, offset, len_bytes } = &partition.place else { panic!("{partition:?}") };
        assert_eq!(Path::new(&**file).parent().unwrap(), Path::new(&**disk));
        ranges.entry(file.to_string()).or_default().push((*offset, *len_bytes));
    }
    for (file, ranges) in ranges {
        let mut end = 0;
        for (offset, len) in sorted(ranges) {
            assert_eq!(offset, end, "the log has no gap");
            end += len;
        }
        assert_eq!(std::fs::metadata(file).unwrap().len(), end);
    }
    assert_eq!(kept.collect().unwrap(), lines.filter(|line| line.len() > 10).collect().unwrap());
    // From one log to the same disks, and after a merge.
    let again = word_count(&kept).persist(&logs).unwrap();
    assert_eq!(sorted(again.collect().unwrap()), sorted(word_count(&kept).collect().unwrap()));
    let used = logs.used();
    let writes = kept.partitions().len() + again.partitions().len();
    assert_eq!(used.iter().map(|used| used.writes).sum::<u64>() as usize, writes);
}

#[test]
fn a_sample_stays_a_sample_when_it_is_persisted() {
    let disks = Disks::new(2);
    (0..2).for_each(|disk| disks.write(disk, "text", &text(disk, 3000)));
    let logs = Logs::in_directories(&disks.directories).unwrap();
    let lines = Ldd::read(disks.shared(), 256, Lines).unwrap();
    let sample = lines.sample_partitions(0.4, 3).unwrap().sample(0.5, 3).unwrap();
    let sum = |set: &Ldd<String>| set.sum(|line| line.len() as f64, 0.95).unwrap();
    let (before, stored) = (sum(&sample), sample.persist(&logs).unwrap());
    let after = sum(&stored);
    assert!(before.standard_error > 0.0);
    assert_eq!((before.low, before.value, before.high), (after.low, after.value, after.high));
    // Its groups lie on any disk now: a slow one cannot be dropped.
    let drop = PartitionSampling { ratio: 0.5, shares: Shares::Equal, drop: 0.1, seed: 1 };
    assert!(stored.sample_partitions_with(&drop).is_err());
    // What was not sampled is sampled by its new disks.
    let whole = lines.persist(&logs).unwrap();
    let part = sum(&whole.sample_partitions_with(&drop).unwrap());
    assert!(part.standard_error > 0.0 && part.claimed);
}

/// How many writes all disks have served.
#[derive(Default)]
struct Served {
    writes: Mutex<u64>,
    more: Condvar,
}

/// A log that serves its first write only when other disks have served `after` of theirs.
struct Gate {
    log: DirectoryLog,
    served: Arc<Served>,
    after: u64,
}

impl DiskLog for Gate {
    fn file(&self) -> &str {
        self.log.file()
    }

    fn append(&self, bytes: &[u8]) -> io::Result<u64> {
        let mut writes = self.served.writes.lock();
        while *writes < self.after {
            if self.served.more.wait_for(&mut writes, Duration::from_secs(60)).timed_out() {
                return Err(io::Error::other("other disks waited for the slow one"));
            }
        }
        *writes += 1;
        self.served.more.notify_all();
        self.log.append(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.log.sync()
    }

    fn read(&self, offset: u64, len_bytes: u64) -> io::Result<Vec<u8>> {
        self.log.read(offset, len_bytes)
    }
}

#[test]
fn a_slow_disk_gets_few_writes_and_its_queue_stays_short() {
    let disks = Disks::new(4);
    let served = Arc::new(Served::default());
    let log = |(i, directory): (usize, &std::path::PathBuf)| {
        let after = if i == 2 { 180 } else { 0 };
        let gate = Gate { log: DirectoryLog::create(directory).unwrap(), served: served.clone(), after };
        (format!("disk {i}"), Box::new(gate) as Box<dyn DiskLog>)
    };
    let logs = Logs::new(disks.directories.iter().enumerate().map(log).collect()).unwrap();
    let numbers = Ldd::in_memory((0..10_000u64).collect(), 200).with_threads(3);
    let kept = numbers.persist(&logs).unwrap();
    assert_eq!(sorted(kept.collect().unwrap()), (0..10_000).collect::<Vec<u64>>());
    let used = logs.used();
    // 50 of 200 would be its share.
    assert!(used[2].writes <= 20, "{used:?}");
    assert!(used.iter().all(|disk| (1..=4).contains(&disk.longest_queue)), "{used:?}");
}
