//! The same work on Tessera, through the client library.

use crate::{Reply, Small, small_files};
use bytes::Bytes;
use std::error::Error;
use tessera_client::{Client, GetOptions, Options, PutOptions, Sink, StorePath, WriteDone};

/// A connection to a cluster.
pub struct Store {
    client: Client,
}

impl Store {
    /// Connects to the manager at `address`, with nothing in any cache; `knobs` are `name=number` over the defaults.
    pub fn connect(address: &str, knobs: &[&str]) -> Result<Store, Box<dyn Error>> {
        let mut options = Options::default();
        for knob in knobs {
            set(&mut options, knob)?;
        }
        Ok(Store { client: Client::connect(address, options)? })
    }

    /// Makes a directory and sets hints on it, each `name=value`.
    pub fn mkdir(&self, path: &str, hints: &[&str]) -> Reply {
        let path = StorePath::parse(path)?;
        self.client.mkdir_all(&path)?;
        let split = |word: &&str| word.split_once('=').map(|(name, value)| (name.to_string(), value.to_string()));
        let hints: Vec<(String, String)> = hints.iter().filter_map(split).collect();
        if !hints.is_empty() {
            self.client.set_hints(&path, &hints)?;
        }
        Ok(String::new())
    }

    /// Writes one file, and comes back when it is committed. The library borrows the memory, it does not copy it.
    pub fn write(&self, path: &str, source: &Bytes) -> Result<(), Box<dyn Error>> {
        self.add(path, source).map(drop)
    }

    /// The same, and what was new of it.
    pub fn add(&self, path: &str, source: &Bytes) -> Result<WriteDone, Box<dyn Error>> {
        Ok(self.client.put(&StorePath::parse(path)?, source.clone(), PutOptions::default())?)
    }

    /// Reads one whole file into memory.
    pub fn read(&self, path: &str, sink: &mut [u8]) -> Result<(), Box<dyn Error>> {
        let len = sink.len() as u64;
        match self.client.get(&StorePath::parse(path)?, Sink::Slice(sink), GetOptions::default())? {
            (_, read) if read == len => Ok(()),
            (_, read) => Err(format!("{read} of {len} bytes came").into()),
        }
    }

    /// Reads one whole file of `len` bytes, taking each piece where it lies.
    pub fn take(&self, path: &str, len: usize) -> Result<(), Box<dyn Error>> {
        let mut taken = 0;
        let mut take = |piece: Bytes| {
            taken += std::hint::black_box(piece).len();
            Ok(())
        };
        self.client.get(&StorePath::parse(path)?, Sink::Lend(&mut take), GetOptions::default())?;
        if taken == len { Ok(()) } else { Err(format!("{taken} of {len} bytes came").into()) }
    }

    /// Small files, each committed before its writer goes on; the writers share one client.
    pub fn small(&self, dir: &str, args: Small, source: &Bytes) -> Reply {
        let mut names = Vec::with_capacity(args.writers * args.files_per_writer);
        for writer in 0..args.writers {
            let place = StorePath::parse(&format!("{dir}/w{writer}"))?;
            self.client.mkdir_all(&place)?;
            for number in 0..args.files_per_writer {
                names.push(place.join(format!("f{number}").as_bytes())?);
            }
        }
        small_files(args, source, |writer, number, content| {
            let path = &names[writer * args.files_per_writer + number];
            self.client.put(path, content, PutOptions::default()).map(|_| ())
        })
    }
}

/// Sets a knob of the client library that speed depends on.
fn set(options: &mut Options, knob: &str) -> Result<(), Box<dyn Error>> {
    let (name, value) = knob.split_once('=').ok_or("a knob is NAME=NUMBER")?;
    match name {
        "write_window_bytes" => options.write_window_bytes = value.parse()?,
        "read_window_bytes" => options.read_window_bytes = value.parse()?,
        "ask_chunks" => options.ask_chunks = value.parse()?,
        "put_bytes" => options.put_bytes = value.parse()?,
        "puts_in_flight" => options.puts_in_flight = value.parse()?,
        "get_bytes" => options.get_bytes = value.parse()?,
        "worker_threads" => options.worker_threads = value.parse()?,
        _ => return Err(format!("{name} is no knob that this driver sets").into()),
    }
    Ok(())
}
