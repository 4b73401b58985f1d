//! Reads one peer's state: its snapshot, or that of another peer, and its entries after it. Nothing of it is believed unchecked.

use super::{Ask, PeerState, Survey};
use tessera_consensus::log::LogEntry;
use tessera_consensus::log::snapshot::SnapshotFiles;
use tessera_consensus::peer::fencing::read_entries;
use tessera_wire::consensus::{GetEntries, GetPiece, SnapshotInfo};

/// Bytes of one answer.
const PIECE_BYTES: u32 = 1 << 20;
const ENTRIES_BYTES: u32 = 4 << 20;

/// Fetches a snapshot with which the state of `peer` can be rebuilt: its own, or one of another peer that its log continues.
///
/// # Errors
/// There is none that can be read; the last reason.
pub(super) fn snapshot(
    ask: &impl Ask,
    survey: &Survey,
    peer: &PeerState,
    files: &mut SnapshotFiles,
) -> Result<SnapshotInfo, String> {
    let own = peer.held.snapshot.as_ref().map(|info| (peer, info));
    let position = peer.held.position.unwrap_or_default();
    let fits = |info: &SnapshotInfo| (peer.held.base_index..=position.last_index).contains(&info.index);
    let others = survey.peers.values().filter(|other| other.id() != peer.id());
    let others = others.filter_map(|other| Some((other, other.held.snapshot.as_ref().filter(|info| fits(info))?)));
    let mut why = "no snapshot is held that its log continues".to_string();
    for (holder, info) in own.into_iter().chain(others) {
        match fetch(ask, survey, holder, info, files) {
            Ok(()) => return Ok(info.clone()),
            Err(error) => why = format!("the snapshot of {}: {error}", holder.label()),
        }
    }
    Err(why)
}

fn fetch(
    ask: &impl Ask,
    survey: &Survey,
    holder: &PeerState,
    info: &SnapshotInfo,
    files: &mut SnapshotFiles,
) -> Result<(), String> {
    while let Some(offset) = files.wanted_from(info) {
        let (cluster_id, index, hash) = (survey.cluster_id.to_vec(), info.index, info.hash.clone());
        let request = GetPiece { cluster_id, index, hash, offset, max_bytes: PIECE_BYTES };
        let (_, piece) = ask.ask(&holder.address, &request).map_err(|error| error.to_string())?;
        if piece.is_empty() && offset < info.len_bytes {
            return Err(format!("it ends at byte {offset} of {}", info.len_bytes));
        }
        files.receive(info, offset, &piece).map_err(|error| error.to_string())?;
    }
    match files.holds(info) {
        true => Ok(()),
        false => Err("another one is here".into()),
    }
}

/// The entries of a peer after a snapshot, as they come.
pub(super) struct Entries<'a, A> {
    ask: &'a A,
    survey: &'a Survey,
    peer: &'a PeerState,
    /// Index and term of the entry before the next one; the term is 0 if it is still to be compared.
    before: (u64, u64),
    last: (u64, u64),
    snapshot: (u64, u64),
}

impl<'a, A: Ask> Entries<'a, A> {
    pub(super) fn after(
        ask: &'a A,
        survey: &'a Survey,
        peer: &'a PeerState,
        info: &SnapshotInfo,
    ) -> Result<Self, String> {
        let position = peer.held.position.unwrap_or_default();
        let (base, snapshot) = ((peer.held.base_index, peer.held.base_term), (info.index, info.term));
        let mut last = (position.last_index, position.last_term);
        let before = match info.index.cmp(&base.0) {
            // A snapshot may be ahead of the log that it was copied beside.
            _ if info.index >= last.0 => {
                last = snapshot;
                snapshot
            }
            std::cmp::Ordering::Less => {
                return Err(format!("its log begins after entry {}, the snapshot ends at {}", base.0, info.index));
            }
            std::cmp::Ordering::Equal if base.1 != info.term => {
                return Err(format!(
                    "its log begins after entry {} of term {}, the snapshot ends at term {}",
                    base.0, base.1, info.term
                ));
            }
            std::cmp::Ordering::Equal => snapshot,
            // The entry that the snapshot ends with shows that both belong together.
            std::cmp::Ordering::Greater => (info.index - 1, 0),
        };
        Ok(Entries { ask, survey, peer, before, last, snapshot })
    }

    /// Term and index of the last entry.
    pub(super) fn end(&self) -> (u64, u64) {
        (self.last.1, self.last.0)
    }

    /// The next entries; none: that was all.
    pub(super) fn next(&mut self) -> Result<Vec<LogEntry>, String> {
        if self.before.0 >= self.last.0 {
            return match self.before == self.last {
                true => Ok(Vec::new()),
                false => Err(format!("it ends at entry {} of term {}", self.before.0, self.before.1)),
            };
        }
        let (cluster_id, peer_id) = (self.survey.cluster_id.to_vec(), self.peer.id());
        let request = GetEntries { cluster_id, peer_id, first_index: self.before.0 + 1, max_bytes: ENTRIES_BYTES };
        let (reply, payload) = self.ask.ask(&self.peer.address, &request).map_err(|error| error.to_string())?;
        let mut entries = read_entries(&reply, self.before, self.last.1, payload)?;
        let Some(end) = entries.last().map(|entry| (entry.index, entry.term)).filter(|end| end.0 <= self.last.0) else {
            return Err(format!("entry {} was asked for, and other ones came", self.before.0 + 1));
        };
        self.before = end;
        if let Some(first) = entries.first().filter(|first| first.index == self.snapshot.0) {
            if first.term != self.snapshot.1 {
                let (index, term) = self.snapshot;
                return Err(format!("entry {index} is of term {}, the snapshot ends at term {term}", first.term));
            }
            entries.remove(0);
            return if entries.is_empty() { self.next() } else { Ok(entries) };
        }
        Ok(entries)
    }
}
