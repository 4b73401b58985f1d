//! `cona`: a store on the command line. Parses arguments, calls the library, prints the result.

use std::error::Error;
use std::io::{Read, Write};
use std::ops::Bound;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::{Parser, Subcommand};
use tessera_cona::{Durability, Options, Stats, Store};

/// Key-value store for flash: about a byte of memory a key, one read a lookup.
#[derive(Parser)]
#[command(name = "cona", version)]
struct Cli {
    /// Directory of the store
    #[arg(long, short, env = "CONA_DIR")]
    dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print a key's value; exit code 2 if it is not there
    Get {
        /// The key
        key: String,
    },
    /// Set a key's value (from standard input if none is given); makes the store if there is none
    Put {
        /// The key
        key: String,
        /// The value
        value: Option<String>,
    },
    /// Remove a key
    Del {
        /// The key
        key: String,
    },
    /// Print keys and values in order, a record a line
    Scan {
        /// Only keys that begin with this
        #[arg(long)]
        prefix: Option<String>,
        /// From this key on
        #[arg(long, conflicts_with = "prefix")]
        from: Option<String>,
        /// Up to this key, without it
        #[arg(long, conflicts_with = "prefix")]
        to: Option<String>,
        /// At most so many records
        #[arg(long)]
        limit: Option<usize>,
        /// Only keys
        #[arg(long)]
        keys: bool,
    },
    /// Print figures: cells, memory, bytes
    Stats,
    /// Read and compare every byte; exit code 1 if any is damaged
    Verify,
    /// Merge everything into one cell, which frees all that was deleted or overwritten; print what that did
    Compact,
    /// Copy the store as it is now to another directory
    Checkpoint {
        /// An empty or new directory
        to: PathBuf,
    },
    /// Write and read random records in a new directory below the store's, and print the rates
    Bench {
        /// Records
        #[arg(long, default_value_t = 1_000_000)]
        records: u64,
        /// Bytes of a value
        #[arg(long, default_value_t = 200)]
        value_bytes: usize,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cona: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Box<dyn Error>> {
    let open = |create| {
        let options = Options { create, durability: Durability::Sync, buffer_bytes: 4 << 20, ..Options::default() };
        Store::open(&cli.dir, options)
    };
    let mut out = std::io::stdout().lock();
    match &cli.command {
        Command::Get { key } => match open(false)?.get(key.as_bytes())? {
            Some(value) => out.write_all(&value).and_then(|()| out.write_all(b"\n"))?,
            None => {
                eprintln!("cona: {key:?} is not there");
                return Ok(ExitCode::from(2));
            }
        },
        Command::Put { key, value } => {
            let mut bytes = value.clone().map(String::into_bytes).unwrap_or_default();
            if value.is_none() {
                std::io::stdin().read_to_end(&mut bytes)?;
            }
            open(true)?.put(key.as_bytes(), &bytes)?;
        }
        Command::Del { key } => open(false)?.delete(key.as_bytes())?,
        Command::Scan { prefix, from, to, limit, keys } => {
            let store = open(false)?;
            let snapshot = store.snapshot();
            let bytes = |s: &Option<String>| s.clone().map(String::into_bytes);
            let (from, to) = (bytes(from), bytes(to));
            let scan = match prefix {
                Some(prefix) => snapshot.prefix(prefix.as_bytes())?,
                None => {
                    let from = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
                    let to = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                    snapshot.range_at_most((from, to), limit.unwrap_or(usize::MAX))?
                }
            };
            for record in scan.take(limit.unwrap_or(usize::MAX)) {
                let (key, value) = record?;
                let line = if *keys {
                    format!("{}\n", key.escape_ascii())
                } else {
                    format!("{}\t{}\n", key.escape_ascii(), value.escape_ascii())
                };
                match out.write_all(line.as_bytes()) {
                    Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
                    written => written?,
                }
            }
        }
        Command::Stats => print_stats(&open(false)?.stats()),
        Command::Verify => {
            let report = open(false)?.verify();
            for error in &report.damage {
                println!("{error}");
            }
            let (cells, records, bytes) = (report.cells, report.records, report.bytes);
            println!("{cells} cells, {records} records, {bytes} bytes: {} damaged", report.damage.len());
            return Ok(ExitCode::from(u8::from(!report.damage.is_empty())));
        }
        Command::Compact => {
            let done = open(false)?.compact()?;
            println!("cells    {} -> {}", done.cells.0, done.cells.1);
            println!("records  {} -> {}", done.records.0, done.records.1);
            println!("bytes    {} -> {}", done.file_bytes.0, done.file_bytes.1);
            println!("written  {} bytes", done.written_bytes);
        }
        Command::Checkpoint { to } => {
            let store = open(false)?;
            let disk = tessera_disk::RealDisk::create(to)?;
            store.checkpoint(&(Arc::new(disk) as Arc<dyn tessera_disk::Disk>), "")?;
        }
        Command::Bench { records, value_bytes } => bench(cli, *records, *value_bytes)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_stats(stats: &Stats) {
    println!("records in cells    {} ({} deletes)", stats.cell_records, stats.cell_deletes);
    println!("records in buffers  {}", stats.buffer_records);
    println!("cells' files        {} bytes", stats.cell_file_bytes);
    let (files, bytes, dead) = (stats.value_files, stats.value_file_bytes, stats.value_dead_bytes);
    println!("value files         {bytes} bytes in {files} files ({dead} bytes dead)");
    println!("index               {} bytes of memory", stats.index_bytes);
    println!("filter              {} bytes of memory", stats.filter_bytes);
    println!("index and filter    {:.3} bytes a record", stats.bytes_per_record());
    for (level, records, bytes) in &stats.cells {
        let level = if *level == 255 { "oldest".into() } else { format!("level {level}") };
        println!("  cell  {level:<9} {records:>12} records {bytes:>14} bytes");
    }
    if let Some(failure) = &stats.failure {
        println!("last failure        {failure}");
    }
}

/// Keys in pseudorandom order.
fn mixed(i: u64) -> u64 {
    tessera_disk::SplitMix64::new(i).next_u64()
}

fn bench(cli: &Cli, records: u64, value_bytes: usize) -> Result<(), Box<dyn Error>> {
    let dir = cli.dir.join("bench");
    let store = Store::open(&dir, Options::default())?;
    let key = |i: u64| format!("user{:016}", mixed(i) % 10_000_000_000_000_000);
    let value = vec![b'v'; value_bytes];
    let rate = |what: &str, count: u64, begun: Instant| {
        println!("{what:<22} {:>10.0} a second", count as f64 / begun.elapsed().as_secs_f64());
    };
    let begun = Instant::now();
    for i in 0..records {
        store.put(key(i).as_bytes(), &value)?;
    }
    rate("put", records, begun);
    store.flush()?;
    store.settle()?;
    rate("put, merged", records, begun);
    let before = store.stats();
    let begun = Instant::now();
    for i in 0..records {
        let at = mixed(i) % records;
        if store.get(key(at).as_bytes())?.is_none() {
            eprintln!("cona: record {at} is lost");
        }
    }
    rate("get, present", records, begun);
    let after = store.stats();
    let begun = Instant::now();
    for i in 0..records {
        store.get(key(i + records).as_bytes())?;
    }
    rate("get, absent", records, begun);
    let absent = store.stats();
    let looked = (after.lookups - before.lookups - (after.cache_hits - before.cache_hits)).max(1);
    println!("pages read, present    {:>10.4} a lookup", (after.page_reads - before.page_reads) as f64 / looked as f64);
    println!(
        "pages read, absent     {:>10.4} a lookup",
        (absent.page_reads - after.page_reads) as f64 / records as f64
    );
    println!("index and filter       {:>10.3} bytes a record", absent.bytes_per_record());
    println!("write amplification    {:>10.2}", absent.write_amplification());
    drop(store);
    Ok(std::fs::remove_dir_all(&dir)?)
}
