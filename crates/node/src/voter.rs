//! The node's log voter: a peer of the group that keeps the metadata. It holds the log and a snapshot, and serves nobody.
//!
//! Every node has one on its first disk; the leader decides which of them are members. A voter whose log is damaged, or older than
//! what it acknowledged, begins anew under another id: the leader then lets it in as it lets in any new peer.

use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use tessera_consensus::log::fence::FENCE_FILE;
use tessera_consensus::log::snapshot::SnapshotFiles;
use tessera_consensus::log::{Base, Log, LogError, LogIdentity, LogOpenError, LogOptions};
use tessera_consensus::message::MAX_TERM_AHEAD;
use tessera_consensus::{Input, Output, Peer, PeerConfig, PeerError};
use tessera_disk::record::parse_numbered_name;
use tessera_disk::{Disk, SplitMix64};
use tessera_wire::Error;
use tessera_wire::consensus::{Member, Membership};
use tessera_wire::rpc::Call;

/// Directory of the voter's log on its disk.
pub const VOTER_DIR: &str = "voter";

/// The reserve of a disk without a voter has room for a snapshot and a log that together are no longer than this.
const SMALL_BYTES: u64 = 256 << 20;
/// The log grows by about this much between two snapshots.
const LOG_BYTES: u64 = 128 << 20;

/// Why a voter cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum VoterError {
    /// Its log cannot be opened; it is not merely damaged.
    #[error(transparent)]
    Open(#[from] LogOpenError),
    /// Its disk failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// It cannot take part.
    #[error(transparent)]
    Peer(#[from] PeerError),
}

impl VoterError {
    /// Whether more room on the disk would help.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            VoterError::Open(LogOpenError::Disk(error)) => error.is_no_space(),
            VoterError::Log(error) => error.is_no_space(),
            VoterError::Open(_) | VoterError::Peer(_) => false,
        }
    }
}

/// What a voter wants done.
#[derive(Debug)]
pub enum VoterAction {
    /// Send a request.
    Call(Call),
    /// Answer a request.
    Answer {
        /// As passed in [`Input::Request`].
        token: u64,
        /// Encoded reply and payload.
        result: Result<(Bytes, Vec<Bytes>), Error>,
    },
}

/// A node's voter.
pub struct Voter {
    disk: Arc<dyn Disk>,
    cluster_id: [u8; 16],
    /// Who it is; its id is the log's.
    member: Member,
    seeds: Vec<String>,
    rng: SplitMix64,
    peer: Peer,
    actions: VecDeque<VoterAction>,
}

impl Voter {
    /// Opens the voter on a disk; makes a new one if there is none, or if it is damaged. `member` gives everything but its id, `seeds`
    /// the addresses of the managers.
    ///
    /// # Errors
    /// The disk fails, or a later release wrote the log.
    pub fn open(
        disk: Arc<dyn Disk>,
        cluster_id: [u8; 16],
        member: Member,
        seeds: Vec<String>,
        seed: u64,
    ) -> Result<Voter, VoterError> {
        let mut rng = SplitMix64::new(seed);
        let log = match Log::open(disk.clone(), VOTER_DIR, LogOptions::default()) {
            Ok(Some(log)) if log.identity().cluster_id == cluster_id => Some(log),
            Ok(_) => None,
            Err(error @ (LogOpenError::Damaged { .. } | LogOpenError::Foreign { .. })) => {
                tracing::warn!(%error, "this node's voter begins anew");
                None
            }
            Err(error) => return Err(error.into()),
        };
        let peer = match log {
            Some(log) => start(&disk, log, &member, &mut rng)?,
            None => anew(&disk, cluster_id, &member, &mut rng)?,
        };
        let mut voter = Voter { disk, cluster_id, member, seeds, rng, peer, actions: VecDeque::new() };
        voter.peer.set_seeds(voter.seeds.clone());
        Ok(voter)
    }

    /// Its peer id; 0 if it has stopped for good.
    #[must_use]
    pub fn id(&self) -> u64 {
        if self.peer.stopped().is_some() { 0 } else { self.peer.id() }
    }

    /// Bytes that fragments must leave free on its disk, beyond their own reserve: for the next snapshot, a quarter longer than the one
    /// held, and for the log until then. Without a snapshot the log could not be shortened, and would fill the disk.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        let held_bytes = self.peer.files().held().map_or(0, |held| held.len_bytes);
        (held_bytes / 4 * 5 + LOG_BYTES).saturating_sub(SMALL_BYTES)
    }

    /// Its part in the group.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Notes the term of a manager that the node obeys: the voter's log remembers if it is of a restored group.
    pub fn meet_term(&mut self, term: u64) {
        self.peer.meet_term(term);
        self.carry_out();
    }

    /// The lowest term of a manager that the node may obey: earlier ones are of groups that were replaced.
    #[must_use]
    pub fn term_min(&self) -> u64 {
        self.peer.log().state().term.saturating_sub(MAX_TERM_AHEAD)
    }

    /// Handles an input.
    pub fn handle(&mut self, now_ns: i64, input: Input) {
        self.peer.handle(now_ns, input);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        let outputs: Vec<Output> = std::iter::from_fn(|| self.peer.poll()).collect();
        for output in outputs {
            match output {
                Output::Call(call) => self.actions.push_back(VoterAction::Call(call)),
                Output::Answer { token, result } => self.actions.push_back(VoterAction::Answer { token, result }),
                Output::Stopped(why) => self.stopped(&why),
                // A voter has no state but the log.
                Output::Committed { .. }
                | Output::Restore(_)
                | Output::Standing(_)
                | Output::Confirmed(_)
                | Output::Members => {}
            }
        }
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<VoterAction> {
        self.actions.pop_front()
    }

    fn stopped(&mut self, why: &PeerError) {
        if !matches!(why, PeerError::Forgotten { .. } | PeerError::Outdated | PeerError::Replaced { .. }) {
            return tracing::error!(%why, "this node's voter stops");
        }
        tracing::warn!(%why, "this node's voter begins anew under another id");
        match anew(&self.disk, self.cluster_id, &self.member, &mut self.rng) {
            Ok(peer) => {
                self.peer = peer;
                self.peer.set_seeds(self.seeds.clone());
                if let PeerError::Replaced { term } = why {
                    self.peer.meet_term(*term);
                }
            }
            Err(error) => tracing::error!(%error, "this node's voter stops"),
        }
    }
}

fn start(disk: &Arc<dyn Disk>, log: Log, member: &Member, rng: &mut SplitMix64) -> Result<Peer, VoterError> {
    let files = SnapshotFiles::open(disk.clone(), VOTER_DIR)?;
    let member = Member { id: log.identity().peer_id, ..member.clone() };
    let base = log.base().index;
    Ok(Peer::start(log, files, base, PeerConfig::new(member, rng.next_u64()))?)
}

/// Removes what is there and makes a peer with a new id.
fn anew(disk: &Arc<dyn Disk>, cluster_id: [u8; 16], member: &Member, rng: &mut SplitMix64) -> Result<Peer, VoterError> {
    wipe(&**disk)?;
    let identity = LogIdentity { cluster_id, peer_id: rng.next_u64().max(1) };
    let (base, nobody) = (Base::default(), Membership::default());
    let log = Log::create(disk.clone(), VOTER_DIR, identity, LogOptions::default(), base, nobody)?;
    start(disk, log, member, rng)
}

/// Removes the voter's files, the oldest of the log first: what a crash leaves must not pass for a shorter log. The fence goes last.
fn wipe(disk: &dyn Disk) -> Result<(), LogError> {
    disk.create_dir(VOTER_DIR)?;
    let mut names = disk.list(VOTER_DIR)?;
    names.sort_by_key(|name| match parse_numbered_name(name, ".log") {
        Some(number) => (1, number),
        None => (if name == FENCE_FILE { 2 } else { 0 }, 0),
    });
    for name in names {
        disk.remove(&format!("{VOTER_DIR}/{name}"))?;
        disk.sync_dir(VOTER_DIR)?;
    }
    Ok(())
}
