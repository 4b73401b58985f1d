//! Log-structured distributed datasets: sets of records in partitions that know where they lie (ApproxSSD, listing 1).
//!
//! A set is lazy. What computes it is a tree of tasks ([`tree`]): loads, one thread for each disk; computing tasks on
//! one partition; and merges over many, which take what has arrived. `driver` has the threads and the queues, [`Logs`]
//! the log heads to which sets are persisted.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let folder = |name: &str| { let path = scratch.path().join(name); std::fs::create_dir(&path).map(|()| path) };
//! # let (a, b) = (folder("a")?, folder("b")?);
//! # for (path, word) in [(&a, "ant"), (&b, "bee")] {
//! #     std::fs::write(path.join("text"), format!("{word} cat\n").repeat(9000))?;
//! # }
//! use std::sync::Arc;
//! use tessera_sampling::ldd::{Ldd, Lines, Logs};
//! use tessera_sampling::source::LocalFiles;
//!
//! // Two directories that play two disks.
//! let disk_of = |path: &std::path::Path| path.parent().unwrap().display().to_string();
//! let files = LocalFiles::open(&[a.clone(), b.clone()], Some(&disk_of))?;
//! let lines = Ldd::read(Arc::new(files), 1024, Lines)?;
//!
//! // WordCount.
//! let words = lines.flat_map(|line| line.split(' ').map(|word| (word.to_string(), 1u64)).collect::<Vec<_>>());
//! let mut counts = words.reduce_by_key(|a, b| a + b).collect()?;
//! counts.sort();
//! assert_eq!(counts, [("ant".to_string(), 9000), ("bee".to_string(), 9000), ("cat".to_string(), 18000)]);
//!
//! // About half of the partitions, and a tenth of the records in each: how many words are there?
//! let sample = lines.sample_partitions(0.5, 1)?.sample(0.1, 1)?;
//! let words = sample.sum(|line| line.split(' ').count() as f64, 0.95)?;
//! assert!(words.low <= 36_000.0 && 36_000.0 <= words.high);
//!
//! // What is persisted is read back from the places that its partitions got.
//! let logs = Logs::in_directories(&[a, b])?;
//! let kept = lines.filter(|line| line.starts_with("ant")).persist(&logs)?;
//! println!("{:?}", kept.partitions()[0].place);
//! assert_eq!(kept.count()?, 9000);
//! # Ok(())
//! # }
//! ```

mod driver;
mod files;
mod logs;
mod pairs;
mod part;
mod partition;
mod persist;
mod plan;
mod record;
mod set;
pub mod tree;

pub use files::{Bytes, Decoder, Lines};
pub use logs::{DirectoryLog, DiskLog, Logs, WriteUse};
pub use pairs::Key;
pub use partition::{Partition, Place};
pub use record::Record;
pub use set::{Data, Ldd, PartitionSampling};
