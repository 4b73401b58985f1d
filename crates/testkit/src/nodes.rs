//! Nodes that keep fragments in maps, and do the tasks that the manager gives them.

use crate::files::RECEIPT_KEY;
use crate::{Cluster, Outcome, fragment};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use tessera_accel::checksum::crc32c;
use tessera_accel::hash::{HASH_BYTES, Hash};
use tessera_stripe::{ClassLayout, StoredFragment, check_part};
use tessera_wire::data::{
    GetFragments, GetFragmentsReply, GetItem, GetResult, PutFragments, PutFragmentsReply, PutItem, PutResult,
};
use tessera_wire::meta::{FragmentRef, Inventory, RebuildTask, Task, TaskResult};
use tessera_wire::rpc::Call;
use tessera_wire::{Code, Error, Kind, PgMember};

/// A fragment on a disk. The default stands for any sound fragment in tests that look at no bytes; rebuilds write it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stored {
    /// Content.
    pub bytes: Bytes,
    /// Checksum that the writer sent.
    pub crc32c: u32,
    /// Digests of the chunk's groups, as the writer sent them.
    pub groups: Bytes,
}

impl Stored {
    /// Flips a bit and leaves the checksum as it is.
    pub fn rot(&mut self, at: usize) {
        let mut bytes = self.bytes.to_vec();
        match bytes.len() {
            0 => self.crc32c ^= 1,
            len => bytes[at % len] ^= 1,
        }
        self.bytes = bytes.into();
    }

    /// Whether the bytes match their checksum.
    pub fn is_sound(&self) -> bool {
        crc32c(&self.bytes) == self.crc32c
    }

    /// Bytes it takes on its disk; without content, as a quarter of a chunk of 1 MiB.
    pub(crate) fn room_bytes(&self) -> u64 {
        if self.bytes.is_empty() { 1 << 18 } else { self.bytes.len() as u64 }
    }
}

/// A disk.
#[derive(Debug, Default, Clone)]
pub struct Disk {
    /// Identity.
    pub uuid: Vec<u8>,
    /// Fragments held, by (chunk, fragment).
    pub held: BTreeMap<(u64, u32), Stored>,
    /// Number of future scrubs that end before they find anything.
    pub scrubs_cut_short: u32,
    /// Bytes that its node says its scrub has re-read.
    pub scrubbed_bytes: u64,
    /// The disk does not serve any more, and its node says so.
    pub failed: bool,
    /// Free space that the node reports, instead of what is free.
    pub free_bytes: Option<u64>,
    /// Length of the queue that the node reports.
    pub queue_len: u32,
}

impl Disk {
    /// Whether it holds this fragment, and the fragment is sound.
    pub fn has_sound(&self, key: (u64, u32)) -> bool {
        !self.failed && self.held.get(&key).is_some_and(Stored::is_sound)
    }

    /// Fragments whose bytes are corrupt.
    pub fn rotten(&self) -> Vec<(u64, u32)> {
        self.held.iter().filter(|(_, stored)| !stored.is_sound()).map(|(key, _)| *key).collect()
    }
}

/// A node.
#[derive(Debug, Default, Clone)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Id that the manager gave it.
    pub node_id: u64,
    /// Incarnation that the manager gave it.
    pub incarnation: u64,
    /// Number of its last heartbeat.
    pub number: u64,
    /// Does not answer: calls fail as if the connection broke. Sends no heartbeats.
    pub down: bool,
    /// Version of the newest map it has.
    pub known_map: u64,
    /// Ids of its disks.
    pub disks: Vec<u64>,
    /// Tasks that it has yet to do.
    pub tasks: Vec<Task>,
    /// Results for the next heartbeat.
    pub results: Vec<TaskResult>,
    /// Deletes that are done, for the next heartbeat.
    pub deleted: Vec<FragmentRef>,
    /// Does not work on tasks; they stay unfinished.
    pub lazy: bool,
    /// Its disk has no room for the records of deletes.
    pub full: bool,
    /// Every put gets this error.
    pub refuse_puts: Option<Error>,
    /// Extra time to answer, ns; whoever carries the calls waits for it.
    pub delay_ns: i64,
}

/// What a node gives for a fragment that it stored.
fn receipt(item: &PutItem) -> u64 {
    let stored = StoredFragment {
        chunk_id: item.chunk_id,
        fragment: item.fragment,
        disk_id: item.disk_id,
        epoch: item.epoch,
        name: &item.hash,
        chunk_len: item.chunk_len_bytes,
        offset: item.offset,
        len: u64::from(item.len_bytes),
    };
    stored.receipt(&RECEIPT_KEY)
}

impl Cluster {
    pub(crate) fn node_call(&mut self, id: u64, call: &Call) -> Outcome {
        let Some(node) = self.nodes.iter().position(|n| n.node_id == id && !n.down) else {
            return Err(Error::new(Code::Unavailable, format!("connection to node {id} broke")));
        };
        match call.kind {
            Kind::PutFragments => {
                let request = PutFragments::decode(&call.body[..]).expect("an encoded request");
                assert_ne!(request.session_id, 0, "a put names its session");
                let mut payload = Bytes::from(call.payload.concat());
                let mut results = Vec::new();
                for item in &request.items {
                    let bytes = payload.split_to(item.len_bytes as usize);
                    let error = self.put_item(node, item, bytes).err();
                    let receipt = if error.is_none() { receipt(item) } else { 0 };
                    results.push(PutResult { error, incarnation: self.nodes[node].incarnation, receipt });
                }
                assert!(payload.is_empty(), "bytes without an item");
                Ok((PutFragmentsReply { results }.encode_to_vec().into(), Bytes::new()))
            }
            Kind::GetFragments => {
                let request = GetFragments::decode(&call.body[..]).expect("an encoded request");
                let (mut results, mut payload) = (Vec::new(), Vec::new());
                for item in &request.items {
                    match self.get_item(node, item) {
                        Ok((result, bytes)) => {
                            results.push(result);
                            payload.extend_from_slice(&bytes);
                        }
                        Err(error) => results.push(GetResult { error: Some(error), ..GetResult::default() }),
                    }
                }
                Ok((GetFragmentsReply { results }.encode_to_vec().into(), payload.into()))
            }
            kind => panic!("no node answers {kind:?}"),
        }
    }

    fn put_item(&mut self, node: usize, item: &PutItem, bytes: Bytes) -> Result<(), Error> {
        let node = &self.nodes[node];
        if let Some(error) = &node.refuse_puts {
            return Err(error.clone());
        }
        // A node learns epochs from its heartbeats; this one knows them at once.
        let current = self.epoch(item.pg_id);
        if item.epoch < current {
            let text = format!("epoch {} is {current} now", item.epoch);
            return Err(Error { current, ..Error::new(Code::StaleEpoch, text) });
        }
        assert!(node.disks.contains(&item.disk_id), "a put for disk {} of another node", item.disk_id);
        assert_eq!(crc32c(&bytes), item.crc32c);
        if let Some(offset) = item.offset {
            let (groups, leaves) = (item.groups.as_chunks::<HASH_BYTES>().0, item.leaves.as_chunks::<HASH_BYTES>().0);
            let name = Hash::try_from(&item.hash[..]).expect("a name");
            check_part(&name, item.chunk_len_bytes, groups, leaves, offset, &bytes).expect("a part of the chunk");
        }
        let stored = Stored { bytes, crc32c: item.crc32c, groups: item.groups.clone() };
        let disk = self.disks.get_mut(&item.disk_id).expect("a disk of the node");
        // P8: a repeated put of a fragment has no further effect.
        if let Some(before) = disk.held.insert((item.chunk_id, item.fragment), stored.clone()) {
            assert_eq!(before, stored, "chunk {} fragment {} changed", item.chunk_id, item.fragment);
        }
        Ok(())
    }

    fn get_item(&self, node: usize, item: &GetItem) -> Result<(GetResult, Bytes), Error> {
        let disk = self.nodes[node].disks.contains(&item.disk_id).then(|| &self.disks[&item.disk_id]);
        let stored = disk.and_then(|disk| disk.held.get(&(item.chunk_id, item.fragment)));
        let stored = stored.ok_or_else(|| Error::new(Code::NotFound, format!("not on disk {}", item.disk_id)))?;
        let (from, to) = match item.whole {
            true => (0, stored.bytes.len()),
            false => (item.offset as usize, (item.offset + item.len_bytes) as usize),
        };
        if to > stored.bytes.len() {
            return Err(Error::new(Code::Invalid, "range passes the fragment's end"));
        }
        let result = GetResult {
            error: None,
            len_bytes: (to - from) as u32,
            fragment_len_bytes: stored.bytes.len() as u32,
            crc32c: stored.crc32c,
            groups: if item.want_groups { stored.groups.clone() } else { Bytes::new() },
        };
        Ok((result, stored.bytes.slice(from..to)))
    }

    /// Lets a node do its tasks.
    pub fn work(&mut self, index: usize) {
        if self.nodes[index].down || self.nodes[index].lazy {
            return;
        }
        for task in std::mem::take(&mut self.nodes[index].tasks) {
            let mut result = TaskResult { task_id: task.task_id, finished: true, ..TaskResult::default() };
            if let Some(rebuild) = &task.rebuild {
                self.rebuild(rebuild, &mut result);
            } else if let Some(inventory) = &task.inventory {
                self.list(index, inventory.disk_id);
            } else if let Some(verify) = &task.verify {
                let bad = |f: &&FragmentRef| !self.disks[&f.disk_id].has_sound((f.chunk_id, f.fragment));
                result.failed = verify.fragments.iter().filter(bad).copied().collect();
            } else if let Some(scrub) = &task.scrub {
                let disk = self.disks.get_mut(&scrub.disk_id).expect("a disk of the node");
                if disk.scrubs_cut_short > 0 {
                    disk.scrubs_cut_short -= 1;
                    result.reason = "the index had to be made anew".into();
                } else {
                    result.failed = disk.rotten().into_iter().map(|key| fragment(key, scrub.disk_id)).collect();
                }
            }
            self.nodes[index].results.push(result);
        }
    }

    fn rebuild(&mut self, task: &RebuildTask, result: &mut TaskResult) {
        let (Some(pg), Some(class)) = (&task.pg, &task.class) else { panic!("a rebuild without group or class") };
        for chunk in &task.chunks {
            let serves = |(i, m): (u32, &PgMember)| {
                let key = (chunk.chunk_id, i);
                [m.disk_id, m.incoming_disk_id].iter().any(|d| self.serves(*d, key)).then_some(i)
            };
            let put = FragmentRef {
                chunk_id: chunk.chunk_id,
                fragment: task.fragment,
                epoch: pg.epoch,
                disk_id: task.disk_id,
            };
            if class.suffices((0..).zip(&pg.members).filter_map(serves)) {
                let disk = self.disks.get_mut(&task.disk_id).expect("a disk of the node");
                if !task.prove {
                    disk.held.insert((chunk.chunk_id, task.fragment), Stored::default());
                }
                result.done.push(put);
                result.bytes += class.fragment_bytes(chunk.len_bytes, task.fragment).expect("a fragment of the class");
            } else {
                result.failed.push(put);
            }
        }
    }

    /// Whether a disk can give a good fragment now.
    pub fn serves(&self, disk_id: u64, key: (u64, u32)) -> bool {
        let up = self.nodes.iter().any(|n| !n.down && n.disks.contains(&disk_id));
        up && self.disks.get(&disk_id).is_some_and(|disk| disk.has_sound(key))
    }

    /// Lists a disk in pages of three.
    fn list(&mut self, index: usize, disk_id: u64) {
        let mut after: Option<FragmentRef> = None;
        loop {
            let from = after.as_ref().map(|a| (a.chunk_id, a.fragment));
            let rest = self.disks[&disk_id].held.keys().filter(|key| from.is_none_or(|from| **key > from));
            let mut held: Vec<FragmentRef> = rest.take(4).map(|key| fragment(*key, disk_id)).collect();
            let last = held.len() < 4;
            held.truncate(3);
            let (node_id, incarnation) = (self.nodes[index].node_id, self.nodes[index].incarnation);
            let next = held.last().copied();
            let Ok(reply) = self.ask(&Inventory { node_id, incarnation, disk_id, after, held, last }) else { return };
            let disk = self.disks.get_mut(&disk_id).expect("a disk of the node");
            for gone in reply.remove {
                disk.held.remove(&(gone.chunk_id, gone.fragment));
            }
            self.check();
            if last {
                return;
            }
            after = next;
        }
    }
}
