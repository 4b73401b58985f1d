//! Gets: requests to one node travel together, and each item of the reply finds its requester.

use super::*;
use crate::fetch::{FragmentRequest, split_answer};
use crate::rpc_table::is_transport;
use tessera_wire::data::{GetFragments, GetItem};
use tessera_wire::rpc::Peer;

#[derive(Debug)]
pub(super) enum Purpose {
    Open,
    Extents { offset: u64 },
    Map { chunks: Vec<u64> },
    Get { node_id: u64, items: Vec<Requester> },
    Renew,
    Report,
    Close,
}

/// What an item of a get was requested for.
#[derive(Debug, Clone)]
pub(super) enum Requester {
    Whole { chunk_id: u64, want: FragmentRequest },
    Small { key: u64, part: usize },
}

/// Items not sent yet, by node.
#[derive(Debug, Default)]
pub(super) struct GetQueue(BTreeMap<u64, Vec<(GetItem, Requester, usize)>>);

impl ReadCore {
    pub(super) fn want_fragment(&mut self, chunk_id: u64, want: FragmentRequest) {
        let Some(whole) = self.fetches.get(&chunk_id) else { return };
        let bytes = whole.fetch.stored_len(want.fragment);
        let item =
            GetItem { chunk_id, fragment: want.fragment, disk_id: want.disk_id, whole: true, ..Default::default() };
        self.get_queue.0.entry(want.node_id).or_default().push((item, Requester::Whole { chunk_id, want }, bytes));
    }

    pub(super) fn want_range(&mut self, node_id: u64, item: GetItem, key: u64, part: usize) {
        let bytes = item.len_bytes as usize;
        self.get_queue.0.entry(node_id).or_default().push((item, Requester::Small { key, part }, bytes));
    }

    /// Sends the requests gathered while the event was handled.
    pub(super) fn flush_wants(&mut self) {
        for (node_id, wants) in std::mem::take(&mut self.get_queue).0 {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            for want in wants {
                if !batch.is_empty() && (bytes + want.2 > self.options.get_bytes || batch.len() >= 256) {
                    self.send_get(node_id, std::mem::take(&mut batch));
                    bytes = 0;
                }
                bytes += want.2;
                batch.push(want);
            }
            self.send_get(node_id, batch);
        }
    }

    fn send_get(&mut self, node_id: u64, batch: Vec<(GetItem, Requester, usize)>) {
        let (items, requesters) = batch.into_iter().map(|(item, requester, _)| (item, requester)).unzip();
        let request = GetFragments { items, hints: Vec::new() };
        let call = Call::new(Peer::Node(node_id), 0, &request, Vec::new(), self.options.get_timeout_ms);
        self.rpcs.send_once(self.now, call, Purpose::Get { node_id, items: requesters });
    }

    pub(super) fn on_got(&mut self, node_id: u64, items: Vec<Requester>, sent_ns: i64, answer: Answer) {
        let results = match split_answer(answer, items.len()) {
            Ok(results) => {
                self.view.write().answered(node_id, self.now.saturating_sub(sent_ns));
                results
            }
            Err(error) => {
                if is_transport(&error) {
                    self.view.write().suspect(node_id, self.now, &self.options);
                    self.report.unreachable += items.len() as u64;
                }
                items.iter().map(|_| Err(error.clone())).collect()
            }
        };
        for (requester, result) in items.into_iter().zip(results) {
            match requester {
                Requester::Whole { chunk_id, want } => {
                    self.step(chunk_id, |fetch, cx| fetch.on_fragment(&want, result, cx));
                }
                Requester::Small { key, part } => self.small_got(key, part, result),
            }
        }
    }
}
