//! One host: a disk, a peer, and for managers a state that is applied and may lose what was not synced.

use std::sync::Arc;
use tessera_consensus::log::snapshot::{SnapshotFiles, seal};
use tessera_consensus::log::{Base, Log, LogError, LogIdentity, LogOptions};
use tessera_consensus::{Peer, PeerConfig, PeerError};
use tessera_disk::{Disk, OpenMode, SimDisk};
use tessera_wire::consensus::{Member, Membership, PeerKind, SnapshotInfo};

pub const CLUSTER: [u8; 16] = [7; 16];
const DIR: &str = "raft";
const OPTIONS: LogOptions = LogOptions { file_size_bytes: 2_000 };

/// The state: entries with their commands.
#[derive(Clone, Default)]
pub struct State {
    pub index: u64,
    pub values: Vec<(u64, Vec<u8>)>,
}

impl State {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.index.to_le_bytes().to_vec();
        for (index, value) in &self.values {
            bytes.extend(index.to_le_bytes());
            bytes.extend((value.len() as u64).to_le_bytes());
            bytes.extend(value);
        }
        bytes
    }

    fn decode(mut bytes: &[u8]) -> State {
        let number = |bytes: &mut &[u8]| {
            let (first, rest) = bytes.split_at(8);
            *bytes = rest;
            u64::from_le_bytes(first.try_into().unwrap())
        };
        let mut state = State { index: number(&mut bytes), values: Vec::new() };
        while !bytes.is_empty() {
            let (index, len) = (number(&mut bytes), number(&mut bytes));
            let (value, rest) = bytes.split_at(len as usize);
            state.values.push((index, value.to_vec()));
            bytes = rest;
        }
        state
    }
}

/// The files of a directory, and the state beside them.
type Backup = (Vec<(String, Vec<u8>)>, State);

pub struct Host {
    pub name: usize,
    pub kind: PeerKind,
    /// How often its address has changed.
    pub moves: u32,
    pub disk: SimDisk,
    pub peer: Option<Peer>,
    pub life: u64,
    pub paused_until_ms: u64,
    pub restart_at_ms: Option<u64>,
    /// What is applied, and how much of it a power loss leaves.
    pub state: State,
    pub synced: State,
    /// This directory's content some time ago.
    pub backup: Option<Backup>,
    /// The entry with which this leader's term began, once applied.
    pub settled_term: u64,
    /// Proposals under way: (entry, term).
    pub proposed: Vec<(u64, u64)>,
    /// Reads under way: number, what had been acknowledged when the read came, the state it was answered from.
    pub reads: Vec<(u64, u64, u64)>,
}

impl Host {
    pub fn address(&self) -> String {
        format!("h{}.{}", self.name, self.moves)
    }

    pub fn member(&self, id: u64) -> Member {
        let name = format!("h{}", self.name);
        Member { id, kind: self.kind as i32, host: name.clone(), address: self.address(), name }
    }

    /// The first manager of a new group.
    pub fn found(&mut self, id: u64, seed: u64) {
        let member = self.member(id);
        let membership =
            Membership { index: 1, voters: vec![id], members: vec![member.clone()], ..Membership::default() };
        let identity = LogIdentity { cluster_id: CLUSTER, peer_id: id };
        let base = Base { index: 1, term: 1 };
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let log = Log::create(disk.clone(), DIR, identity, OPTIONS, base, membership.clone()).unwrap();
        self.state = State { index: 1, values: Vec::new() };
        self.synced = self.state.clone();
        let mut files = SnapshotFiles::open(disk, DIR).unwrap();
        let info = SnapshotInfo { index: 1, term: 1, membership: Some(membership), ..SnapshotInfo::default() };
        let info = self.write_snapshot(&files.part(), info).unwrap();
        files.adopt(info).unwrap();
        self.peer = Some(Peer::start(log, files, 1, PeerConfig::new(member, seed)).unwrap());
    }

    /// A peer in an empty directory: it waits to be made a member.
    pub fn join(&mut self, id: u64, seed: u64) {
        let identity = LogIdentity { cluster_id: CLUSTER, peer_id: id };
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let log = Log::create(disk.clone(), DIR, identity, OPTIONS, Base::default(), Membership::default()).unwrap();
        let files = SnapshotFiles::open(disk, DIR).unwrap();
        (self.state, self.synced) = (State::default(), State::default());
        self.peer = Some(Peer::start(log, files, 0, PeerConfig::new(self.member(id), seed)).unwrap());
    }

    /// Starts again from the disk. `Ok(false)`: the directory holds no peer.
    pub fn restart(&mut self, seed: u64) -> Result<bool, PeerError> {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let opened = Log::open(disk.clone(), DIR, OPTIONS).map_err(|error| PeerError::Log(error.to_string()))?;
        let Some(log) = opened else { return Ok(false) };
        let files = SnapshotFiles::open(disk, DIR).map_err(|error| PeerError::Log(error.to_string()))?;
        let (id, base) = (log.identity().peer_id, log.base().index);
        if self.kind == PeerKind::Manager && self.state.index < base {
            let held = files.held().cloned().expect("entries are dropped only if a snapshot holds them");
            assert!(held.index >= base, "the log begins at {base}, the snapshot ends at {}", held.index);
            self.restore(&files, &held).map_err(|error| PeerError::Log(error.to_string()))?;
        }
        let applied = if self.kind == PeerKind::Manager { self.state.index } else { base };
        self.peer = Some(Peer::start(log, files, applied, PeerConfig::new(self.member(id), seed))?);
        Ok(true)
    }

    pub fn stop(&mut self) {
        self.peer = None;
        self.life += 1;
        (self.settled_term, self.proposed, self.reads) = (0, Vec::new(), Vec::new());
    }

    /// Replaces the state by that of a snapshot.
    pub fn restore(&mut self, files: &SnapshotFiles, info: &SnapshotInfo) -> Result<(), LogError> {
        let bytes = files.read(info.index, &info.hash, 0, u32::MAX)?;
        self.state = State::decode(&bytes);
        assert_eq!(self.state.index, info.index, "a snapshot holds what it says");
        self.synced = self.state.clone();
        Ok(())
    }

    fn write_snapshot(&self, part: &str, info: SnapshotInfo) -> Result<SnapshotInfo, LogError> {
        let file = self.disk.open(part, OpenMode::Create)?;
        file.truncate(0)?;
        file.write_at(0, &self.state.encode())?;
        seal(&self.disk, DIR, part, info)
    }

    /// Makes a snapshot of the state. False if the disk has no room, or no power.
    pub fn snapshot(&mut self) -> bool {
        let Some(peer) = &self.peer else { return false };
        let (part, info) = (peer.files().part(), peer.snapshot_at(self.state.index));
        let has_room = self.disk.space().is_ok_and(|space| space.free_bytes > 1 << 20);
        let made = info.filter(|_| has_room).and_then(|info| self.write_snapshot(&part, info).ok());
        made.is_some_and(|info| self.peer.as_mut().is_some_and(|peer| peer.adopt(info).is_ok()))
    }

    /// A copy of the directory as it is.
    pub fn back_up(&mut self) {
        let files = self.disk.paths().into_iter().filter_map(|path| Some((path.clone(), self.disk.contents(&path)?)));
        self.backup = Some((files.collect(), self.state.clone()));
    }

    /// Puts the copy back.
    pub fn roll_back(&mut self, seed: u64) -> bool {
        let Some((files, state)) = self.backup.take() else { return false };
        self.disk = SimDisk::new(seed);
        self.disk.create_dir(DIR).unwrap();
        for (path, bytes) in files {
            self.disk.write_durable(&path, &bytes).unwrap();
        }
        (self.state, self.synced) = (state.clone(), state);
        true
    }

    /// Everything is lost.
    pub fn wipe(&mut self, seed: u64) {
        self.disk = SimDisk::new(seed);
        self.backup = None;
        (self.state, self.synced) = (State::default(), State::default());
    }
}
