//! Small files that are read by the hundred: one request describes them, and each is then read without a session.

use super::core::{Delivery, Opened, ReadParams};
use super::{Sink, WriteHoles};
use crate::client::Client;
use crate::error::{Cause, Error, FileError};
use crate::path::StorePath;
use bytes::Bytes;
use std::io::Write;
use tessera_wire::meta::{DescribeReads, DescribeReadsReply, ListExtentsReply, OpenRead, OpenReadReply};
use tessera_wire::{Code, Error as WireError};

/// Files that one request describes.
pub const DESCRIBED_FILES: usize = 128;
/// A longer file is opened by itself: until it is verified, a file is in memory.
const MOST_BYTES: u64 = 1 << 20;

/// What the manager knew of a small file. Nothing keeps its chunks, so a read of it may have to open the file after all.
#[derive(Debug, Clone)]
pub struct Described(Box<OpenReadReply>);

impl Client {
    /// Describes small files for [`crate::GetOptions::described`], at most [`DESCRIBED_FILES`]; `version` is the number of a version within
    /// each, 0: the current one. A file that is not described must be opened, which says what is wrong with it.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    pub fn describe(&self, paths: &[&StorePath], version: u64) -> Result<Vec<Option<Described>>, Error> {
        let mut all = vec![None; paths.len()];
        let place = |path: &&StorePath| match self.place(path) {
            Err(error) if matches!(error.code(), Code::Unavailable | Code::Timeout | Code::NotLeader) => Err(error),
            place => Ok(place.ok()),
        };
        let places = paths.iter().map(place).collect::<Result<Vec<_>, Error>>()?;
        let open = |(parent, name): (u64, &[u8])| OpenRead {
            parent,
            name: name.to_vec(),
            number: version,
            ..OpenRead::default()
        };
        let files = places.iter().flatten().map(|(parent, name)| open((parent.ino, name))).collect();
        let reply = self.ask(&self.describe_request(files, false))?;
        let asked = places.iter().zip(&mut all).filter(|(place, _)| place.is_some());
        for ((_, described), file) in asked.zip(self.note_described(reply)) {
            *described = file;
        }
        Ok(all)
    }

    /// Describes the current versions of files by their inode numbers. Those that must be opened are left out.
    pub(crate) fn describe_inodes(&self, inos: &[u64]) -> Result<Vec<OpenReadReply>, Error> {
        let files = inos.iter().map(|ino| OpenRead { ino: *ino, ..OpenRead::default() }).collect();
        let reply = self.ask(&self.describe_request(files, false))?;
        Ok(self.note_described(reply).flatten().map(Described::into_reply).collect())
    }

    /// Describes small files of a directory, at most [`DESCRIBED_FILES`], each under a lease if the manager grants one: for
    /// [`Client::read_described`]. Asks once.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    pub fn describe_names(&self, parent: u64, names: &[Vec<u8>]) -> Result<Vec<OpenReadReply>, WireError> {
        let open = |name: &Vec<u8>| OpenRead { parent, name: name.clone(), ..OpenRead::default() };
        let reply = self.ask_once(&self.describe_request(names.iter().map(open).collect(), true))?;
        self.context.view.write().learn(&reply.classes, reply.map.as_ref());
        Ok(reply.files)
    }

    fn describe_request(&self, files: Vec<OpenRead>, want_leases: bool) -> DescribeReads {
        DescribeReads { files, known_map_version: self.context.view.read().known_version(), want_leases }
    }

    /// Notes classes and map, and returns the files.
    fn note_described(&self, reply: DescribeReadsReply) -> impl Iterator<Item = Option<Described>> {
        self.context.view.write().learn(&reply.classes, reply.map.as_ref());
        reply.files.into_iter().map(Described::of)
    }

    /// Reads a file that was described into the sink. `None`: it must be opened, and nothing went into the sink.
    pub(crate) fn get_described(
        &self,
        path: &StorePath,
        Described(known): Described,
        sink: &mut Sink<'_>,
        bulk: bool,
    ) -> Option<Result<(Opened, u64), FileError>> {
        let (file, open) = (path.to_string(), OpenRead { len_bytes: u64::MAX, ..OpenRead::default() });
        let params = ReadParams { file: file.clone(), open, known: Some(known), bulk };
        let mut kept = Kept::default();
        let read = super::get(&self.context, params, &mut Sink::Sparse(&mut kept), None);
        // Whatever is wrong, the file may have changed since.
        let (opened, _) = read.inspect_err(|error| tracing::debug!(%error, "the file is opened after all")).ok()?;
        let written = kept.write_to(sink).map_err(|error| Cause::Output(error.to_string()).of(&file));
        Some(written.map(|len_bytes| (opened, len_bytes)))
    }
}

/// A whole file in memory.
#[derive(Default)]
struct Kept(Vec<Delivery>);

impl Kept {
    /// Returns its length in bytes.
    fn write_to(&self, sink: &mut Sink<'_>) -> std::io::Result<u64> {
        let mut at = 0;
        for delivery in &self.0 {
            sink.take(at, delivery)?;
            at += delivery.len_bytes();
        }
        Ok(at)
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.push(Delivery::Bytes(vec![Bytes::copy_from_slice(bytes)]));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl WriteHoles for Kept {
    fn hole(&mut self, len_bytes: u64) -> std::io::Result<()> {
        self.0.push(Delivery::Zeros(len_bytes));
        Ok(())
    }
}

impl Described {
    /// `None`: the file is not described, or too long.
    pub(super) fn of(reply: OpenReadReply) -> Option<Described> {
        let size_bytes = reply.version.as_ref()?.size_bytes;
        let to = reply.extents.as_ref().map(|ListExtentsReply { next_offset, .. }| *next_offset)?;
        let is_whole = reply.attr.is_some() && size_bytes <= MOST_BYTES && to >= size_bytes;
        is_whole.then(|| Described(Box::new(OpenReadReply { session_id: 0, ..reply })))
    }

    pub(super) fn into_reply(self) -> OpenReadReply {
        *self.0
    }
}
