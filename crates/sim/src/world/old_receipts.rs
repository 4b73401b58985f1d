//! Clients that keep receipts ([`Mutant::OldReceipts`]): they send no fragment again that they, or others, have stored once, and show
//! the receipt of then. The manager must find out where the fragment was lost since. What nodes have reported as bad or absent must be
//! there in the end; a scrub would rebuild it, so that is checked before.

use super::*;
use prost::Message;
use std::collections::BTreeSet;
use tessera_wire::data::PutFragments;
use tessera_wire::meta::{AllocateChunks, ChunkAck, CloseSession, Commit, CompleteFragments, Heartbeat};

/// What the clients keep, and what nodes have reported.
#[derive(Default)]
pub(super) struct OldReceipts {
    /// The first receipt of each fragment, and the epoch of its put.
    first: BTreeMap<(u64, u32), (u64, u64)>,
    /// (chunk, fragment, node).
    reported: BTreeSet<(u64, u32, usize)>,
}

impl OldReceipts {
    /// Changes what a client sends, and notes what a node does.
    pub fn change(&mut self, from: Actor, call: &mut Call) {
        match (from, call.kind) {
            (Actor::Node(node), Kind::Heartbeat) => self.note(node, &call.body),
            (Actor::Client(_), Kind::PutFragments) => edit(call, |put: &mut PutFragments| {
                // No node serves that disk; the client takes the refusal for an acknowledgement.
                let known =
                    put.items.iter_mut().filter(|item| self.first.contains_key(&(item.chunk_id, item.fragment)));
                known.for_each(|item| item.disk_id = u64::MAX);
            }),
            (Actor::Client(_), Kind::Commit) => edit(call, |commit: &mut Commit| self.show(&mut commit.acks)),
            (Actor::Client(_), Kind::AllocateChunks) => edit(call, |it: &mut AllocateChunks| self.show(&mut it.stored)),
            (Actor::Client(_), Kind::CloseSession) => edit(call, |it: &mut CloseSession| self.show(&mut it.stored)),
            (Actor::Client(_), Kind::CompleteFragments) => edit(call, |it: &mut CompleteFragments| {
                for (of, receipt) in it.fragments.iter_mut().zip(&mut it.receipts) {
                    (*receipt, of.epoch) = self.first((of.chunk_id, of.fragment), (*receipt, of.epoch));
                }
            }),
            _ => {}
        }
    }

    fn show(&mut self, acks: &mut [ChunkAck]) {
        for ack in acks {
            let given = ack.stored.iter().zip(ack.receipts.iter_mut().zip(&mut ack.epochs));
            for (fragment, (receipt, epoch)) in given {
                (*receipt, *epoch) = self.first((ack.chunk_id, *fragment), (*receipt, *epoch));
            }
        }
    }

    /// The first receipt of a fragment. 0 is the receipt of a put that was refused.
    fn first(&mut self, fragment: (u64, u32), now: (u64, u64)) -> (u64, u64) {
        if now.0 == 0 {
            self.first.get(&fragment).copied().unwrap_or(now)
        } else {
            *self.first.entry(fragment).or_insert(now)
        }
    }

    /// A node's disk is about to rot: what is sound again may become bad anew.
    pub fn forget_sound(&mut self, index: usize, node: &NodeHost) {
        self.reported.retain(|&(chunk_id, fragment, at)| at != index || !node.holds_sound(chunk_id, fragment));
    }

    fn note(&mut self, node: usize, body: &[u8]) {
        let beat = Heartbeat::decode(body).expect("an encoded request");
        let failed = beat.results.iter().flat_map(|result| &result.failed);
        self.reported.extend(beat.bad.iter().chain(failed).map(|it| (it.chunk_id, it.fragment, node)));
    }
}

impl World {
    /// Checks that no fragment that a node has reported counts as in place without being there (P6).
    pub(super) fn check_reported(&mut self) -> Result<(), Violation> {
        for chunk in self.leader().placed() {
            for &(fragment, node) in &chunk.fragments {
                let Some(node) = node else { continue };
                let is_reported = self.old_receipts.reported.contains(&(chunk.chunk_id, fragment, node));
                if is_reported && !self.nodes[node].holds_sound(chunk.chunk_id, fragment) {
                    let known = self.leader().describe_chunk(chunk.chunk_id);
                    return broken(
                        "P6",
                        format!("n{node} reported that it lacks fragment {fragment}, and lacks it still; {known}"),
                    );
                }
            }
        }
        Ok(())
    }
}

fn edit<M: Message + Default>(call: &mut Call, change: impl FnOnce(&mut M)) {
    let mut message = M::decode(call.body.clone()).expect("an encoded request");
    change(&mut message);
    call.body = message.encode_to_vec().into();
}
