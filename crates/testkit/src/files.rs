//! Files of chunks without bytes, written by plain requests, for tests that look at the manager only.

use crate::{CAPACITY, Cluster};
use bytes::Bytes;
use tessera_wire::meta::{
    ChunkAck, ChunkAnswer, ChunkName, ChunkState, Commit, CommitMode, FragmentRef, List, OpenWrite, OpenWriteReply,
    RegisterNode, Unlink,
};
use tessera_wire::{DiskInfo, Error, Extent, NodeInfo};

const CHUNK_BYTES: u64 = 1 << 20;
/// Key of the receipts of all nodes.
pub(crate) const RECEIPT_KEY: [u8; 32] = [9; 32];

impl Cluster {
    /// Opens a writer for `name` in the root directory, with chunks named by `seeds`.
    ///
    /// # Errors
    /// The manager's refusal.
    pub fn open(&mut self, name: &str, redundancy: &str, seeds: &[u64]) -> Result<OpenWriteReply, Error> {
        let request = OpenWrite {
            op_id: self.op(),
            parent: 1,
            name: name.into(),
            chunks: seeds.iter().map(|s| chunk_name(*s)).collect(),
            redundancy: redundancy.to_string(),
            ..OpenWrite::default()
        };
        self.ask(&request)
    }

    /// Puts all fragments of a chunk on the disks that take its group's puts and are up; returns the epoch of the puts.
    pub fn put(&mut self, answer: &ChunkAnswer) -> u64 {
        for m in self.members_of(answer.pg_id) {
            if !self.node_of(m.put_disk()).down {
                let disk = self.disks.get_mut(&m.put_disk()).expect("a disk of a member");
                disk.held.entry((answer.chunk_id, m.position)).or_default();
            }
        }
        self.epoch(answer.pg_id)
    }

    /// Puts the fragments of all chunks that are not stored; returns their acknowledgements.
    pub fn put_all(&mut self, opened: &OpenWriteReply) -> Vec<ChunkAck> {
        let mut acks = Vec::new();
        for answer in answers(opened).iter().filter(|a| a.state != ChunkState::Durable as i32) {
            acks.push(ChunkAck { chunk_id: answer.chunk_id, epochs: vec![self.put(answer)], ..ChunkAck::default() });
        }
        acks
    }

    /// The commit that follows an open and its puts.
    pub fn commit_request(&mut self, opened: &OpenWriteReply, acks: Vec<ChunkAck>) -> Commit {
        let len_bytes = CHUNK_BYTES;
        let extent = |(i, a): (u64, &ChunkAnswer)| {
            let name = self.chunk(a.chunk_id).map_or(Vec::new(), |chunk| chunk.hash.to_vec());
            Extent::of_chunk(i * len_bytes, len_bytes, a.chunk_id, &name, 0)
        };
        let extents: Vec<Extent> = (0..).zip(answers(opened)).map(extent).collect();
        Commit {
            op_id: self.op(),
            session_id: opened.session_id,
            mode: CommitMode::Replace as i32,
            size_bytes: extents.len() as u64 * len_bytes,
            extents,
            acks,
            ..Commit::default()
        }
    }

    /// Writes a file of chunks named by `seeds`; returns the chunk ids.
    pub fn write(&mut self, name: &str, redundancy: &str, seeds: &[u64]) -> Vec<u64> {
        let opened = self.open(name, redundancy, seeds).expect("room for a file");
        let acks = self.put_all(&opened);
        let request = self.commit_request(&opened, acks);
        let reply = self.ask(&request).expect("a commit of all fragments");
        assert_eq!(reply.stale, vec![], "{name}");
        self.check();
        answers(&opened).iter().map(|a| a.chunk_id).collect()
    }

    /// Names in the root directory.
    pub fn names(&mut self) -> Vec<Vec<u8>> {
        let request = List { ino: 1, ..List::default() };
        self.ask(&request).expect("the root").entries.into_iter().map(|entry| entry.name).collect()
    }

    /// Removes a name from the root directory.
    pub fn unlink(&mut self, name: &str) {
        let request = Unlink { op_id: self.op(), parent: 1, name: name.into(), directory: false };
        self.ask(&request).expect("a name");
    }
}

fn answers(opened: &OpenWriteReply) -> &[ChunkAnswer] {
    opened.allocated.as_ref().map_or(&[], |allocated| &allocated.answers)
}

/// A fragment on a disk as messages name it.
pub fn fragment(key: (u64, u32), disk_id: u64) -> FragmentRef {
    FragmentRef { chunk_id: key.0, fragment: key.1, epoch: 0, disk_id }
}

/// The name of a chunk of 1 MiB.
pub fn chunk_name(seed: u64) -> ChunkName {
    let mut hash = [0u8; 32];
    hash[..8].copy_from_slice(&seed.to_le_bytes());
    ChunkName { hash: Bytes::copy_from_slice(&hash), len_bytes: CHUNK_BYTES, region: 0 }
}

/// Identity of a disk of a node.
pub fn uuid(node: usize, disk: usize) -> Vec<u8> {
    let mut uuid = vec![1u8; 16];
    (uuid[0], uuid[1]) = (node as u8, disk as u8);
    uuid
}

/// The registration of a node with disks of these uuids, without a number.
pub fn registration(name: &str, uuids: &[Vec<u8>]) -> RegisterNode {
    let disk = |uuid: &Vec<u8>| DiskInfo {
        uuid: uuid.clone(),
        capacity_bytes: CAPACITY,
        free_bytes: CAPACITY,
        path: "/d".into(),
        ..DiskInfo::default()
    };
    let node = NodeInfo {
        name: name.to_string(),
        host: format!("host-{name}"),
        address: format!("127.0.0.1:{}", 1000 + name.len()),
        ..NodeInfo::default()
    };
    RegisterNode {
        op_id: 0,
        node: Some(node),
        disks: uuids.iter().map(disk).collect(),
        receipt_key: RECEIPT_KEY.to_vec(),
        check_only: false,
    }
}
