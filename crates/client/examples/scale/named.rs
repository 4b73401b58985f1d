//! Files whose extents name chunks that the store has: a client that knows the names of its chunks asks whether they are there, and
//! commits, without reading or hashing a byte.

use crate::Reply;
use crate::files::ROOT;
use bytes::{Bytes, BytesMut};
use std::ops::Range;
use std::time::Instant;
use tessera_accel::hash::chunk_hash;
use tessera_client::{Client, PutOptions, StorePath};
use tessera_wire::Extent;
use tessera_wire::meta::{AllocateChunks, ChunkAnswer, ChunkName, ChunkState, Commit, CommitMode, OpenWrite};

/// Class of all chunks here.
const REDUNDANCY: &str = "ec:4+2";
/// Chunks in one question: the manager's limit.
const ASKED_CHUNKS: usize = 16_384;
/// Bytes of the pool that are written as one file.
const FILE_BYTES: u64 = 256 << 20;

/// Chunks that the store has.
#[derive(Default)]
pub struct Pool {
    chunk_bytes: u64,
    names: Vec<Bytes>,
}

impl Pool {
    /// Stores `count` chunks that occur nowhere else, as ordinary files.
    pub fn store(
        client: &Client,
        count: u64,
        chunk_bytes: u64,
    ) -> Result<Pool, Box<dyn std::error::Error + Send + Sync>> {
        client.mkdir_all(&StorePath::parse(ROOT)?)?;
        let hints = vec![
            ("redundancy".to_string(), REDUNDANCY.to_string()),
            ("chunking".to_string(), format!("fixed:{}K", chunk_bytes >> 10)),
        ];
        let (mut names, at_once) = (Vec::new(), (FILE_BYTES / chunk_bytes).max(1));
        for first in (0..count).step_by(at_once as usize) {
            let chunks = at_once.min(count - first);
            let mut bytes = BytesMut::zeroed((chunks * chunk_bytes) as usize);
            for (i, word) in bytes.chunks_mut(8).enumerate() {
                let place = (first * chunk_bytes / 8 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                word.copy_from_slice(
                    &(place ^ place >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()[..word.len()],
                );
            }
            names.extend(bytes.chunks(chunk_bytes as usize).map(|chunk| Bytes::copy_from_slice(&chunk_hash(chunk).0)));
            let path = StorePath::parse(&format!("{ROOT}/pool{first}"))?;
            client.put(&path, bytes.freeze(), PutOptions { hints: hints.clone(), ..PutOptions::default() })?;
        }
        Ok(Pool { chunk_bytes, names })
    }

    /// Commits files of `extents` chunks each, named `big0` and so on.
    pub fn commit_files(&self, client: &Client, numbers: Range<u64>, extents: u64) -> Reply {
        if self.names.is_empty() {
            return Err("there are no chunks: say pool CHUNKS CHUNK_BYTES first".into());
        }
        let (parent, began) = (client.stat(&StorePath::parse(ROOT)?)?.ino, Instant::now());
        let count = numbers.end - numbers.start;
        for number in numbers {
            self.commit_file(client, (parent, number), extents)?;
        }
        let bytes = count * extents * self.chunk_bytes;
        Ok(format!("bytes={bytes} extents={} seconds={:.6}", count * extents, began.elapsed().as_secs_f64()))
    }

    /// Opens a file, asks about all its chunks and commits it.
    fn commit_file(&self, client: &Client, (parent, number): (u64, u64), extents: u64) -> Reply {
        let size_bytes = extents * self.chunk_bytes;
        // No two files begin with the same chunk.
        let names: Vec<&Bytes> =
            self.names.iter().cycle().skip(number as usize * 7 % self.names.len()).take(extents as usize).collect();
        let open = OpenWrite {
            op_id: client.op_id(),
            parent,
            name: format!("big{number}").into_bytes(),
            redundancy: REDUNDANCY.into(),
            ..OpenWrite::default()
        };
        let session_id = client.ask(&open)?.session_id;
        let mut answers: Vec<ChunkAnswer> = Vec::with_capacity(names.len());
        for some in names.chunks(ASKED_CHUNKS) {
            let name = |hash: &&Bytes| ChunkName { hash: (*hash).clone(), len_bytes: self.chunk_bytes, region: 0 };
            let chunks = some.iter().map(name).collect();
            let (op_id, redundancy) = (client.op_id(), REDUNDANCY.to_string());
            let question = AllocateChunks { op_id, session_id, redundancy, chunks, ..AllocateChunks::default() };
            answers.extend(client.ask(&question)?.answers);
        }
        if let Some(lacking) = answers.iter().find(|answer| answer.state != ChunkState::Durable as i32) {
            return Err(format!("the store does not have chunk {} durably", lacking.chunk_id).into());
        }
        let extent = |(at, (name, answer)): (usize, (&&Bytes, &ChunkAnswer))| {
            Extent::of_chunk(at as u64 * self.chunk_bytes, self.chunk_bytes, answer.chunk_id, name, 0)
        };
        let commit = Commit {
            op_id: client.op_id(),
            session_id,
            mode: CommitMode::Replace as i32,
            size_bytes,
            extents: names.iter().zip(&answers).enumerate().map(extent).collect(),
            ..Commit::default()
        };
        let reply = client.ask(&commit)?;
        match reply.stale.is_empty() {
            true => Ok(String::new()),
            false => Err("the commit named chunks that are not durable any more".into()),
        }
    }
}
