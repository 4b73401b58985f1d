//! Fences what is left of a group, and makes a new one of its newest state.
//!
//! Every step can be repeated: until the last one the directory holds [`RESTORING_FILE`], and the next run begins anew with
//! the same number.

use super::read::{self, Entries};
use super::{Ask, PeerState, RESTORING_FILE, Restore, RestoreError, Restored, Survey, survey};
use crate::db::cache::Caches;
use crate::db::meta::Meta;
use crate::db::{Db, DirLock};
use crate::group::{DbHome, LOG_DIR, disk_of};
use crate::internal::{Internal, NewTerm};
use crate::log::batch;
use prost::Message;
use std::sync::Arc;
use tessera_consensus::log::fence::Fence;
use tessera_consensus::log::snapshot::SnapshotFiles;
use tessera_consensus::log::{Base, Log, LogError, LogIdentity, LogOptions};
use tessera_consensus::message::MAX_TERM_AHEAD;
use tessera_consensus::peer::fencing::TERMS_BETWEEN_GROUPS;
use tessera_disk::{Disk, RealDisk};
use tessera_wire::consensus::{EntryKind, FencePeer, Membership, SnapshotInfo};
use tessera_wire::log::{LogEntry, LoggedCommand};

/// Terms above this are not believed: no group is restored so often.
const TERM_MAX: u64 = 1 << 40;

/// The state of one peer as a database.
struct Rebuilt {
    db: Db,
    files: SnapshotFiles,
    state: (u64, u64),
}

impl<A: Ask> Restore<'_, A> {
    /// The number of a restore that was interrupted in the directory, which is locked.
    ///
    /// # Errors
    /// [`RestoreError::Occupied`]: a manager or something else is there; or the disk fails.
    pub fn begun(&self) -> Result<Option<u64>, RestoreError> {
        Ok(self.load()?.map(|fence| fence.restore_id))
    }

    fn load(&self) -> Result<Option<Fence>, RestoreError> {
        let begun = Fence::load(&RealDisk::open(&self.dir).map_err(LogError::from)?, RESTORING_FILE)?;
        if begun.is_none() {
            if Db::is_in(&self.dir) {
                return Err(RestoreError::Occupied { dir: self.dir.display().to_string() });
            }
            Db::check_empty(&self.dir)?;
        }
        Ok(begun)
    }

    /// Restores the group that `survey` found, as a group of one in the directory.
    ///
    /// # Errors
    /// [`RestoreError`]. Peers may be fenced by then: only another run lets the group go on.
    pub fn run(&self, lock: DirLock, mut survey: Survey, restore_id: u64) -> Result<Restored, RestoreError> {
        let begun = self.load()?;
        survey.check(begun.map(|fence| fence.restore_id), self.force)?;
        let disk = disk_of(&self.dir, &lock)?;
        let fence = self.begin(&*disk, begun, restore_id, &survey)?;
        self.fence(&mut survey, &fence)?;
        let mut candidates = self.candidates(&survey)?;
        let home = DbHome::in_dir(&self.dir, lock);
        let newest = candidates[0].clone();
        let mut why = String::new();
        loop {
            let peer = candidates.remove(0);
            if peer.state() < newest.state() && !self.force {
                return Err(self.older(&peer, &newest, why));
            }
            match self.rebuild(&survey, &peer, &home, &disk)? {
                Ok(rebuilt) => return self.found(rebuilt, &peer, &survey, &fence, (&home, &disk)),
                Err(error) => {
                    tracing::warn!(peer = peer.label(), error, "this state cannot be read");
                    why = error;
                }
            }
            if candidates.is_empty() {
                return Err(RestoreError::Unreadable { peer: newest.label(), why });
            }
        }
    }

    fn older(&self, peer: &PeerState, newest: &PeerState, why: String) -> RestoreError {
        let (taken, state) = (peer.label(), peer.state());
        RestoreError::Older { taken, state, newest: newest.label(), newer: newest.state(), why }
    }

    /// Writes durably that a restore has begun here.
    fn begin(
        &self,
        disk: &dyn Disk,
        begun: Option<Fence>,
        restore_id: u64,
        survey: &Survey,
    ) -> Result<Fence, RestoreError> {
        let highest = survey.highest_term();
        if highest >= TERM_MAX {
            let why = format!("a peer claims term {highest}, which no group reaches");
            let peer = survey.peers.values().find(|peer| peer.term().max(peer.held.fence_term) >= TERM_MAX);
            return Err(RestoreError::Unreadable { peer: peer.map_or_else(String::new, PeerState::label), why });
        }
        let restore_id = begun.map_or(restore_id, |fence| fence.restore_id);
        let peer_id = begun.map_or(self.member.id, |fence| fence.peer_id);
        assert!(restore_id != 0 && peer_id != 0, "numbers of restores and peers are never 0");
        let unused = |fence: &Fence| {
            let own = |peer: &PeerState| peer.fence().is_some_and(|(restore, _)| restore == restore_id);
            let terms = survey
                .peers
                .values()
                .map(|peer| if own(peer) { peer.term() } else { peer.term().max(peer.held.fence_term) });
            fence.term > terms.max().unwrap_or(0).saturating_add(MAX_TERM_AHEAD)
        };
        if let Some(fence) = begun.filter(unused) {
            return Ok(fence);
        }
        let term = highest + TERMS_BETWEEN_GROUPS;
        let fence = Fence { cluster_id: survey.cluster_id, peer_id, term, restore_id };
        fence.store(disk, RESTORING_FILE).map_err(LogError::from)?;
        Ok(fence)
    }

    /// Fences every member that answers. The states that count are those after it.
    fn fence(&self, survey: &mut Survey, fence: &Fence) -> Result<(), RestoreError> {
        let Fence { restore_id, term, .. } = *fence;
        for (id, peer) in &mut survey.peers {
            let cluster_id = survey.cluster_id.to_vec();
            let request = FencePeer { cluster_id, peer_id: *id, restore_id, term, force: self.force };
            let asked = self.ask.ask(&peer.address, &request);
            let fenced = asked.and_then(|(held, _)| survey::check(&held).map(|()| held));
            let why = match fenced {
                Ok(held) if (held.fence_restore_id, peer.id()) == (restore_id, *id) => {
                    peer.held = held;
                    continue;
                }
                Ok(_) => "it does not say so".to_string(),
                Err(error) => error.to_string(),
            };
            return Err(RestoreError::CannotFence { peer: peer.label(), why });
        }
        Ok(())
    }

    /// The peers whose state may be taken, the newest first; or the one that was asked for.
    pub(crate) fn candidates(&self, survey: &Survey) -> Result<Vec<PeerState>, RestoreError> {
        let mut all: Vec<PeerState> = survey.peers.values().filter(|peer| peer.state().1 > 0).cloned().collect();
        all.sort_by_key(|peer| std::cmp::Reverse(peer.state()));
        let names = || all.iter().map(PeerState::label).collect::<Vec<_>>().join(", ");
        let Some(newest) = all.first() else { return Err(RestoreError::NoMember { answered: String::new() }) };
        let Some(word) = &self.state_of else { return Ok(all) };
        let is_called = |peer: &&PeerState| {
            let member = peer.member();
            member.name == *word || peer.address == *word || format!("{:016x}", member.id) == *word
        };
        match all.iter().find(is_called) {
            None => Err(RestoreError::NoSuchPeer { word: word.clone(), names: names() }),
            Some(peer) if peer.state() < newest.state() && !self.force => Err(self.older(peer, newest, String::new())),
            Some(peer) => Ok(vec![peer.clone()]),
        }
    }

    /// Makes a database of a peer's state. The inner error: it cannot be read.
    fn rebuild(
        &self,
        survey: &Survey,
        peer: &PeerState,
        home: &DbHome,
        disk: &Arc<dyn Disk>,
    ) -> Result<Result<Rebuilt, String>, RestoreError> {
        self.clear(&**disk)?;
        let mut files = SnapshotFiles::open(disk.clone(), LOG_DIR)?;
        let info = match read::snapshot(self.ask, survey, peer, &mut files) {
            Ok(info) => info,
            Err(why) => return Ok(Err(why)),
        };
        let mut entries = match Entries::after(self.ask, survey, peer, &info) {
            Ok(entries) => entries,
            Err(why) => return Ok(Err(why)),
        };
        let db = home.restore(None, &files, &info)?;
        let mut meta = db.meta()?;
        if (meta.cluster_id, meta.log_seq) != (survey.cluster_id, info.index) {
            return Ok(Err(format!("its snapshot of entry {} holds entry {}", info.index, meta.log_seq)));
        }
        let caches = Caches::default();
        loop {
            let some = match entries.next() {
                Ok(some) if some.is_empty() => break,
                Ok(some) => some,
                Err(why) => return Ok(Err(why)),
            };
            for entry in some.iter().filter(|entry| entry.kind == EntryKind::Command && !entry.data.is_empty()) {
                if let Err(why) = apply(&db, &mut meta, &caches, entry) {
                    return Ok(Err(format!("entry {}: {why}", entry.index)));
                }
            }
        }
        Ok(Ok(Rebuilt { db, files, state: entries.end() }))
    }

    /// Removes what an earlier attempt left.
    fn clear(&self, disk: &dyn Disk) -> Result<(), RestoreError> {
        Db::remove(&self.dir)?;
        disk.create_dir(LOG_DIR).map_err(LogError::from)?;
        for name in disk.list(LOG_DIR).map_err(LogError::from)? {
            disk.remove(&format!("{LOG_DIR}/{name}")).map_err(LogError::from)?;
        }
        Ok(disk.sync_dir(LOG_DIR).map_err(LogError::from)?)
    }

    /// Makes the new group: its log begins with the entry that follows the last one, a new term of a restored database.
    fn found(
        &self,
        rebuilt: Rebuilt,
        peer: &PeerState,
        survey: &Survey,
        fence: &Fence,
        (home, disk): (&DbHome, &Arc<dyn Disk>),
    ) -> Result<Restored, RestoreError> {
        let Rebuilt { mut db, mut files, state } = rebuilt;
        let (index, term) = (state.1 + 1, fence.term);
        let mut meta = db.meta()?;
        note_restored(&db, &mut meta, (index, term))?;
        let member = tessera_wire::consensus::Member { id: fence.peer_id, ..self.member.clone() };
        let mut replaced = survey.members();
        let earlier = survey.membership.replaced.iter();
        let earlier: Vec<_> = earlier.filter(|old| replaced.iter().all(|new| new.id != old.id)).cloned().collect();
        replaced.extend(earlier);
        let membership =
            Membership { index, voters: vec![member.id], members: vec![member], replaced, ..Membership::default() };
        let identity = LogIdentity { cluster_id: fence.cluster_id, peer_id: fence.peer_id };
        let (base, options) = (Base { index, term }, LogOptions::default());
        let log = Log::create(disk.clone(), LOG_DIR, identity, options, base, membership.clone())?;
        let info = SnapshotInfo { index, term, membership: Some(membership), ..SnapshotInfo::default() };
        let info = home.make_snapshot(&mut db, &log, &files, info)?;
        files.adopt(info)?;
        db.close()?;
        disk.remove(RESTORING_FILE).and_then(|()| disk.sync_dir("")).map_err(LogError::from)?;
        tracing::info!(from = peer.label(), term, index, "a new group begins");
        Ok(Restored { from: peer.member(), state, term })
    }
}

fn note_restored(db: &Db, meta: &mut Meta, (index, term): (u64, u64)) -> Result<(), RestoreError> {
    let command = NewTerm { term, restored: true }.encode_to_vec().into();
    let command = LoggedCommand { kind: NewTerm::KIND, body: command, client_id: 0, decisions: Vec::new() };
    // The new group's clock goes on from here.
    let (now_ns, wall_ns) = (meta.last_now_ns, meta.last_wall_ns);
    let entry = LogEntry { term, seq: index, now_ns, commands: vec![command], wall_ns };
    batch::replay(db, meta, &Caches::default(), &[entry])?;
    assert_eq!((meta.log_seq, meta.term), (index, term), "the new group begins here");
    Ok(())
}

fn apply(db: &Db, meta: &mut Meta, caches: &Caches, entry: &tessera_consensus::log::LogEntry) -> Result<(), String> {
    let decoded = LogEntry::decode(&entry.data[..]).map_err(|error| error.to_string())?;
    if decoded.seq != entry.index {
        return Err(format!("it says that it is entry {}", decoded.seq));
    }
    batch::replay(db, meta, caches, &[decoded]).map_err(|error| error.to_string())
}
