//! Copies a snapshot from a peer that holds it, one piece at a time.

use super::{GetPiece, Peer, Sent};
use crate::log::LogError;
use std::collections::{BTreeMap, BTreeSet};
use tessera_wire::consensus::{Member, SnapshotInfo};
use tessera_wire::rpc::{Answer, Call, Peer as Address};

/// Bytes of a piece.
const PIECE_BYTES: u32 = 1 << 20;
/// Pause between pieces of a snapshot that nobody waits for: 100 MiB/s at most.
const PAUSE_NS: i64 = 10_000_000;
/// Pause after a copy for which there was no room.
const NO_ROOM_NS: i64 = 60_000_000_000;
/// The longest answer to wait for in milliseconds.
const TIMEOUT_MS: u64 = 10_000;

pub(super) struct Fetch {
    info: SnapshotInfo,
    from: u64,
    /// The group waits for it.
    is_urgent: bool,
    /// Token of the call that asks for the next piece.
    under_way: Option<u64>,
    not_before_ns: i64,
}

/// Peers that may hold the snapshot that this one wants.
#[derive(Default)]
pub(super) struct Sources {
    /// Those that answered an introduction, and those that they named.
    pub(super) introduced: BTreeMap<u64, Member>,
    /// Those that could not give the snapshot with this hash, or gave something else.
    failed: BTreeSet<u64>,
    hash: Vec<u8>,
    /// No copy begins before.
    not_before_ns: i64,
    /// The last piece of a snapshot that this peer needs found no room.
    lacks_room: bool,
}

impl Sources {
    pub(super) fn lacks_room(&self) -> bool {
        self.lacks_room
    }
}

impl Peer {
    /// Whom to ask for a snapshot that `from` holds: another peer, if `from` has failed. Its copy may be damaged.
    fn source(&mut self, info: &SnapshotInfo, from: u64) -> u64 {
        if self.sources.hash != info.hash {
            self.sources.hash.clone_from(&info.hash);
            self.sources.failed.clear();
        }
        let members = self.membership().members.iter().map(|member| member.id);
        let known = self.heard.keys().chain(self.sources.introduced.keys()).copied().chain(members);
        let own = self.id();
        let is_open = |id: &u64| *id != own && !self.sources.failed.contains(id);
        match Some(from).filter(is_open).or_else(|| known.filter(is_open).min()) {
            Some(source) => source,
            None => {
                self.sources.failed.clear();
                from
            }
        }
    }

    /// Decides whether to copy a snapshot that a peer holds.
    pub(super) fn consider(&mut self, info: SnapshotInfo, from: u64, is_urgent: bool) {
        if self.now_ns < self.sources.not_before_ns {
            return;
        }
        if crate::message::snapshot(&info).is_err() || self.node.mut_store().files.wanted_from(&info).is_none() {
            return;
        }
        let from = if self.fetch.is_none() { self.source(&info, from) } else { from };
        match &mut self.fetch {
            Some(fetch) if fetch.info == info => fetch.is_urgent |= is_urgent,
            Some(fetch) if fetch.is_urgent && !is_urgent => {}
            // A newer snapshot every now and then must not keep an older one from ever being complete.
            Some(fetch) if fetch.under_way.is_some() && !is_urgent => {}
            fetch => *fetch = Some(Fetch { info, from, is_urgent, under_way: None, not_before_ns: 0 }),
        }
    }

    /// Asks for the next piece, if it is time.
    pub(super) fn fetch_more(&mut self) {
        if self.stopped.is_some() || self.fence.is_some() {
            return;
        }
        let now_ns = self.now_ns;
        let Some(fetch) =
            self.fetch.as_ref().filter(|f| f.under_way.is_none() && (f.is_urgent || f.not_before_ns <= now_ns))
        else {
            return;
        };
        let (info, from) = (fetch.info.clone(), fetch.from);
        let offset = self.node.mut_store().files.wanted_from(&info);
        let member = self.find(from).or_else(|| self.sources.introduced.get(&from));
        let (Some(offset), Some(address)) = (offset, member.map(|member| member.address.clone())) else {
            self.fetch = None;
            self.sources.failed.insert(from);
            return;
        };
        let (index, hash, cluster_id) = (info.index, info.hash, self.log().identity().cluster_id.to_vec());
        let request = GetPiece { cluster_id, index, hash, offset, max_bytes: PIECE_BYTES };
        let token = self.draw_token(Sent::Piece);
        if let Some(fetch) = &mut self.fetch {
            fetch.under_way = Some(token);
        }
        let call = Call::new(Address::Address(address), token, &request, Vec::new(), TIMEOUT_MS);
        self.outputs.push_back(super::Output::Call(call));
    }

    pub(super) fn piece_answered(&mut self, answer: Answer) {
        // Another snapshot may have become more urgent meanwhile.
        let Some(mut fetch) = self.fetch.take_if(|fetch| fetch.under_way == Some(answer.token)) else { return };
        let older = self.files().held().map_or(0, |held| held.index);
        let files = &mut self.node.mut_store().files;
        let piece = match answer.decode::<GetPiece>() {
            Ok((_, piece)) => piece,
            Err(error) => {
                tracing::debug!(%error, "a piece of a snapshot is not given");
                self.sources.failed.insert(fetch.from);
                return;
            }
        };
        let Some(offset) = files.wanted_from(&fetch.info) else { return };
        let received = files.receive(&fetch.info, offset, &piece);
        self.sources.lacks_room = fetch.is_urgent && received.as_ref().is_err_and(LogError::is_no_space);
        match received {
            Ok(true) => {
                tracing::info!(index = fetch.info.index, bytes = fetch.info.len_bytes, "a snapshot is complete");
                if let Err(error) = self.drop_entries(older) {
                    tracing::warn!(%error, "entries of the log are not dropped");
                }
            }
            Ok(false) if piece.is_empty() => _ = self.sources.failed.insert(fetch.from),
            Ok(false) => {
                (fetch.under_way, fetch.not_before_ns) = (None, self.now_ns + PAUSE_NS);
                self.fetch = Some(fetch);
            }
            // It is announced again.
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "a snapshot is not copied");
                self.sources.not_before_ns = self.now_ns + NO_ROOM_NS;
            }
            Err(error) => {
                tracing::warn!(%error, from = fetch.from, "copying a snapshot");
                self.sources.failed.insert(fetch.from);
            }
        }
    }

    /// Answers a request for a piece of the snapshot held.
    ///
    /// # Errors
    /// The cluster is another one, the snapshot is not held, or the disk fails.
    pub(super) fn serve_piece(&self, request: &GetPiece) -> Result<Vec<u8>, tessera_wire::Error> {
        use tessera_wire::{Code, Error};
        if request.cluster_id != self.log().identity().cluster_id {
            return Err(Error::new(Code::WrongCluster, "a snapshot of another cluster is not here"));
        }
        let max_bytes = request.max_bytes.min(PIECE_BYTES);
        self.files().read(request.index, &request.hash, request.offset, max_bytes).map_err(|error| {
            let code = if matches!(error, LogError::NoSnapshot { .. }) { Code::NotFound } else { Code::Io };
            Error::new(code, error.to_string())
        })
    }
}

const _: () = assert!(PIECE_BYTES <= tessera_wire::frame::MAX_PAYLOAD_BYTES);
