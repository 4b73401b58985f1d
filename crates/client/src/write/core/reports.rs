//! Reports of what is stored: the manager learns of chunks that this write has stored whole before a commit names them. So the same
//! write finds them when it is repeated after this one was interrupted, or its process was killed.
//!
//! Reports travel with dedup questions. A question without chunks carries them when much has gathered and no question is due, and
//! the request that closes the session carries the rest. A report is no longer than a question, which every manager takes. Nothing depends
//! on a report, so none is repeated by itself.

use super::*;
use tessera_policy::Dedup as Share;
use tessera_stripe::ClassLayout;
use tessera_wire::meta::ChunkAck;

/// Stored bytes that are reported by themselves. What was stored since the last report is stored again after a kill.
const REPORT_BYTES: u64 = 8 << 20;

/// Chunks to report.
#[derive(Debug, Default)]
pub(super) struct Reports {
    queue: VecDeque<usize>,
    bytes: u64,
}

impl WriteCore {
    /// Queues a chunk that was settled.
    pub(super) fn report_later(&mut self, index: usize) {
        if self.is_reportable(index) {
            self.reports.queue.push_back(index);
            self.reports.bytes += self.chunks[index].len_bytes;
        }
    }

    /// Whether this write has stored the whole chunk, and the manager does not know yet. Chunks that no other write may share need no
    /// report.
    fn is_reportable(&self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        let all = chunk.class.as_ref().map_or(0, |class| class.fragments() as usize);
        let whole = chunk.is_settled() && !chunk.durable && chunk.missing.is_empty() && chunk.receipts.len() == all;
        whole && !chunk.reported && !self.is_one_shot() && self.session.policy.dedup != Share::Off
    }

    /// The chunks of the next report, with their acknowledgements.
    pub(super) fn take_reports(&mut self) -> (Vec<usize>, Vec<ChunkAck>) {
        let count = self.reports.queue.len().min(self.options.ask_chunks);
        let mut indices: Vec<usize> = self.reports.queue.drain(..count).collect();
        self.reports.bytes -= indices.iter().map(|i| self.chunks[*i].len_bytes).sum::<u64>();
        indices.retain(|i| self.is_reportable(*i));
        let acks = indices.iter().map(|i| self.chunks[*i].ack()).collect();
        (indices, acks)
    }

    /// Reports by itself what has gathered, unless a question does.
    pub(super) fn pump_reports(&mut self) {
        if self.reports.bytes < REPORT_BYTES || self.dedup.in_flight > 0 {
            return;
        }
        self.dedup.in_flight += 1;
        self.ask(self.session.scheme.clone(), Vec::new(), Vec::new());
    }

    /// The manager has taken the report.
    pub(super) fn on_reported(&mut self, indices: &[usize]) {
        indices.iter().for_each(|i| self.chunks[*i].reported = true);
    }

    /// Everything that no answered report holds, for the request that closes the session.
    pub(super) fn last_report(&self) -> Vec<ChunkAck> {
        let left = (0..self.chunks.len()).filter(|i| self.is_reportable(*i));
        left.take(self.options.ask_chunks).map(|i| self.chunks[i].ack()).collect()
    }
}
