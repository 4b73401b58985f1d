//! Fragments to send: which wait for which node, and which leave together.

use super::*;
use crate::rpc_table::is_transport;
use tessera_stripe::{ClassLayout, edge_leaves};
use tessera_wire::data::{PutFragments, PutFragmentsReply, PutItem};
use tessera_wire::rpc::Peer;

/// Most fragments in one put.
const MAX_PUT_ITEMS: usize = 512;

/// How long a put to a disk that takes nothing may take, in ms: it only asks whether the disk is back.
const DOUBTFUL_TIMEOUT_MS: u64 = 2_000;

/// A fragment in a queue or in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FragmentPut {
    pub chunk: usize,
    /// The chunk's id when the put was queued; a chunk that moved has another one.
    pub chunk_id: u64,
    pub number: u32,
    pub disk_id: u64,
    pub epoch: u64,
    pub len_bytes: usize,
}

impl FragmentPut {
    /// The state of a fragment that waits for this put.
    pub fn state(&self) -> FragState {
        FragState::Sent { disk_id: self.disk_id, epoch: self.epoch }
    }
}

#[derive(Debug, Default)]
struct NodeQueue {
    urgent: VecDeque<FragmentPut>,
    /// Redundancy of optimistic writes: sent when nothing urgent waits.
    later: VecDeque<FragmentPut>,
    queued_bytes: usize,
    in_flight: usize,
}

/// A queue for each node.
#[derive(Debug, Default)]
pub(super) struct Sender {
    nodes: BTreeMap<u64, NodeQueue>,
    in_flight: usize,
    pub sent_bytes: u64,
}

impl Sender {
    pub fn enqueue(&mut self, node_id: u64, put: FragmentPut, urgent: bool) {
        let queue = self.nodes.entry(node_id).or_default();
        queue.queued_bytes += put.len_bytes;
        if urgent { queue.urgent.push_back(put) } else { queue.later.push_back(put) }
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// The next put for a node. Fragments gather while `more_to_come`, and leave when they are large enough or the
    /// node has nothing in flight. Only those that are still `current` are sent.
    fn next_batch(
        &mut self,
        node_id: u64,
        encoding: bool,
        is_last: bool,
        options: &Options,
        current: impl Fn(&FragmentPut) -> bool,
    ) -> Option<Vec<FragmentPut>> {
        let queue = self.nodes.get_mut(&node_id)?;
        assert!(queue.in_flight <= options.puts_in_flight, "{} puts in flight to node {node_id}", queue.in_flight);
        let small = queue.queued_bytes < options.put_bytes / 4;
        let more_to_come = encoding || queue.in_flight > 0 && !is_last;
        if queue.in_flight == options.puts_in_flight || (small && more_to_come) {
            return None;
        }
        let (mut items, mut bytes) = (Vec::new(), 0);
        while let Some(put) = queue.urgent.front().or(queue.later.front()).copied() {
            if !items.is_empty() && (bytes + put.len_bytes > options.put_bytes || items.len() >= MAX_PUT_ITEMS) {
                break;
            }
            if queue.urgent.pop_front().is_none() {
                queue.later.pop_front();
            }
            assert!(queue.queued_bytes >= put.len_bytes, "node {node_id}: {} bytes queued", queue.queued_bytes);
            queue.queued_bytes -= put.len_bytes;
            if current(&put) {
                bytes += put.len_bytes;
                items.push(put);
            }
        }
        if items.is_empty() {
            return None;
        }
        queue.in_flight += 1;
        self.in_flight += 1;
        self.sent_bytes += bytes as u64;
        Some(items)
    }

    fn on_answer(&mut self, node_id: u64) {
        let queue = self.nodes.get_mut(&node_id).filter(|queue| queue.in_flight > 0);
        queue.expect("an answer to no put").in_flight -= 1;
        assert!(self.in_flight > 0, "an answer to no put");
        self.in_flight -= 1;
    }

    /// Forgets the puts that are not sent yet.
    pub fn forget_queued(&mut self) {
        for queue in self.nodes.values_mut() {
            queue.urgent.clear();
            queue.later.clear();
            queue.queued_bytes = 0;
        }
    }

    pub fn clear(&mut self) {
        self.nodes.clear();
        self.in_flight = 0;
    }

    pub fn describe(&self) -> String {
        let busy = self.nodes.iter().filter(|(_, q)| q.in_flight + q.urgent.len() + q.later.len() > 0);
        let nodes = busy.map(|(id, q)| {
            format!("node {id}: {} in flight, {} urgent, {} later; ", q.in_flight, q.urgent.len(), q.later.len())
        });
        format!("{} puts; {}", self.in_flight, nodes.collect::<String>())
    }
}

impl WriteCore {
    pub(super) fn pump_puts(&mut self) {
        let ids: Vec<u64> = self.sender.nodes.keys().copied().collect();
        let (encoding, is_last) = (!self.jobs.pending.is_empty(), self.committer.ending.is_some());
        for node_id in ids {
            let chunks = &self.chunks;
            let current = |put: &FragmentPut| {
                let chunk = &chunks[put.chunk];
                let frag = chunk.active.as_ref().and_then(|a| a.frag(put.number));
                chunk.chunk_id == put.chunk_id && frag.is_some_and(|f| f.state == put.state())
            };
            let mut batches = Vec::new();
            while let Some(items) = self.sender.next_batch(node_id, encoding, is_last, &self.options, current) {
                batches.push(items);
            }
            batches.into_iter().for_each(|items| self.send_puts(node_id, items));
        }
    }

    fn send_puts(&mut self, node_id: u64, items: Vec<FragmentPut>) {
        let mut payload = Vec::with_capacity(items.len());
        let mut wire = Vec::with_capacity(items.len());
        for put in &items {
            let chunk = &self.chunks[put.chunk];
            let active = chunk.active.as_ref().expect("a current put has its chunk's bytes");
            let frag = active.frag(put.number).expect("a current put has its fragment");
            assert_eq!(frag.bytes.len(), put.len_bytes, "chunk {} fragment {}", chunk.chunk_id, put.number);
            let class = chunk.class.as_ref().expect("a fragment that was computed has a class");
            let offset = class.plain_offset(chunk.len_bytes, put.number);
            let part = |offset| edge_leaves(&active.data, offset..offset + frag.bytes.len() as u64);
            wire.push(PutItem {
                chunk_id: chunk.chunk_id,
                fragment: put.number,
                disk_id: put.disk_id,
                pg_id: chunk.pg_id,
                epoch: put.epoch,
                domain: self.session.domain,
                class_id: class.class_id,
                hash: Bytes::copy_from_slice(&chunk.hash),
                chunk_len_bytes: chunk.len_bytes,
                len_bytes: frag.bytes.len() as u32,
                crc32c: frag.crc32c,
                groups: active.groups.clone(),
                offset,
                leaves: offset.map(part).unwrap_or_default().concat(),
            });
            if !frag.bytes.is_empty() {
                payload.push(frag.bytes.clone());
            }
        }
        let (session_id, hints) = (self.session.put_id, self.params.hints.clone());
        let request = PutFragments { session_id, items: wire, no_sync: false, hints };
        let is_doubtful = items.iter().all(|put| self.placer.refusing.contains(&put.disk_id));
        let timeout_ms = self.options.put_timeout_ms;
        let timeout_ms = if is_doubtful { timeout_ms.min(DOUBTFUL_TIMEOUT_MS) } else { timeout_ms };
        let call = Call::new(Peer::Node(node_id), 0, &request, payload, timeout_ms);
        self.rpcs.send_once(self.now, call, Purpose::Put { node_id, items });
    }

    pub(super) fn on_put(&mut self, node_id: u64, items: Vec<FragmentPut>, answer: Answer) {
        self.sender.on_answer(node_id);
        let malformed = |got: usize| Error::new(Code::Internal, format!("{got} results for {} puts", items.len()));
        let results = match answer.decode::<PutFragments>() {
            Ok((PutFragmentsReply { results }, _)) if results.len() == items.len() => {
                results.into_iter().map(|r| r.error.map_or(Ok(r.receipt), Err)).collect()
            }
            Ok((reply, _)) => vec![Err(malformed(reply.results.len())); items.len()],
            Err(error) => {
                if is_transport(&error) {
                    self.view.write().suspect(node_id, self.now, &self.options);
                }
                vec![Err(error); items.len()]
            }
        };
        for (put, result) in items.into_iter().zip(results) {
            match result {
                Ok(receipt) => self.on_acknowledged(put, receipt),
                Err(error) => self.on_put_refused(put, error),
            }
        }
    }

    fn on_acknowledged(&mut self, put: FragmentPut, receipt: u64) {
        let now = self.now;
        let Some(chunk) = self.chunks.get_mut(put.chunk).filter(|c| c.chunk_id == put.chunk_id) else { return };
        // A commit that reports it as missing is in flight, or done.
        let late = chunk.pinned && chunk.missing.contains(&put.number);
        let Some(frag) = chunk.active.as_mut().and_then(|a| a.frag_mut(put.number)) else { return };
        // Of two puts of a fragment, only the newer one counts.
        if frag.state != put.state() {
            return;
        }
        frag.state = FragState::Acked { epoch: put.epoch };
        self.placer.refusing.remove(&put.disk_id);
        chunk.receipts.insert(put.number, (receipt, put.epoch));
        let outdated = put.epoch < chunk.newest_epoch();
        if late {
            chunk.missing.retain(|f| *f != put.number);
            self.committer.late_since = now;
            let (chunk_id, fragment, epoch, disk_id) = (put.chunk_id, put.number, put.epoch, put.disk_id);
            self.committer.late_fragments.push((FragmentRef { chunk_id, fragment, epoch, disk_id }, receipt));
        }
        if outdated { self.place(put.chunk) } else { self.check_settled(put.chunk) }
    }

    pub(super) fn on_put_refused(&mut self, put: FragmentPut, error: Error) {
        let now = self.now;
        let Some(chunk) = self.chunks.get_mut(put.chunk).filter(|c| c.chunk_id == put.chunk_id) else { return };
        let Some(active) = &mut chunk.active else { return };
        let (attempts, reported) = (active.attempts, chunk.reported_epoch != 0);
        let Some(frag) = active.frag_mut(put.number).filter(|f| f.state == put.state()) else { return };
        match error.code() {
            // The version was committed without this fragment (`durability=optimistic`) and is gone already: the node
            // has deleted the chunk, and would refuse forever.
            Code::NotFound if reported => {
                active.last_error = error.message;
                return self.leave_to_repair(put.chunk);
            }
            // The group changed: the newer map shows which acknowledgements still count and where the rest goes (P11).
            Code::StaleEpoch if attempts < 6 => {
                frag.state = FragState::Waiting;
                chunk.told_epoch = chunk.told_epoch.max(error.current);
                active.attempts += 1;
            }
            // Damaged in flight.
            Code::Corrupt if attempts < 3 => {
                frag.state = FragState::Waiting;
                active.attempts += 1;
            }
            // A restarting daemon is back soon; after a second failure the chunk moves.
            Code::Unavailable | Code::Timeout if attempts == 0 && !self.placer.refusing.contains(&put.disk_id) => {
                frag.state = FragState::Waiting;
                active.attempts += 1;
                self.placer.retries.add(now.saturating_add(self.options.backoff_ns(1)), put.chunk);
                active.trouble_since.get_or_insert(now);
                active.last_error = error.message;
                return;
            }
            _ => frag.state = FragState::Failed { disk_id: put.disk_id },
        }
        active.trouble_since.get_or_insert(now);
        active.last_error = error.message;
        self.want_map(put.chunk);
    }
}
