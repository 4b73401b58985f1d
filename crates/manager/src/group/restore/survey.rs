//! What is left of a group: who answers, and with which state.

use super::{Ask, RestoreError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tessera_consensus::PeerError;
use tessera_consensus::log::fence::Fence;
use tessera_consensus::message::{MAX_TERM_AHEAD, contains, is_sound};
use tessera_wire::Error;
use tessera_wire::consensus::{DescribePeer, DescribePeerReply, Member, Membership};

/// Limit of the addresses that are asked.
const ADDRESSES_MAX: usize = 256;

/// A peer that answers.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerState {
    /// Where it answered.
    pub address: String,
    /// What it holds; all its parts are there.
    pub held: DescribePeerReply,
}

impl PeerState {
    /// The peer.
    #[must_use]
    pub fn member(&self) -> Member {
        self.held.member.clone().unwrap_or_default()
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.held.member.as_ref().map_or(0, |member| member.id)
    }

    /// Its name with its address, for messages.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} at {}", self.member().name, self.address)
    }

    /// Term and index of the last entry that its log or its snapshot holds.
    #[must_use]
    pub fn state(&self) -> (u64, u64) {
        let position = self.held.position.unwrap_or_default();
        let snapshot = self.held.snapshot.as_ref().map_or((0, 0), |held| (held.term, held.index));
        snapshot.max((position.last_term, position.last_index))
    }

    /// The term that it is in.
    pub(super) fn term(&self) -> u64 {
        self.held.position.unwrap_or_default().term
    }

    /// Whether it was ever a member of a group.
    pub(super) fn is_member(&self) -> bool {
        self.held.membership.as_ref().is_some_and(|membership| !membership.voters.is_empty())
    }

    /// The fence, if there is one: the restore, and its term.
    #[must_use]
    pub fn fence(&self) -> Option<(u64, u64)> {
        (self.held.fence_term > 0).then_some((self.held.fence_restore_id, self.held.fence_term))
    }

    /// Whether it can take part in an election.
    fn votes(&self) -> bool {
        self.fence().is_none() && self.held.stopped.is_empty()
    }

    pub(super) fn why_fenced(&self) -> String {
        let (restore_id, term) = self.fence().unwrap_or_default();
        PeerError::of_fence(&Fence { cluster_id: [0; 16], peer_id: 0, term, restore_id }).to_string()
    }
}

/// What is left of a group.
#[derive(Debug, Clone)]
pub struct Survey {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The newest membership that a peer knows.
    pub membership: Membership,
    /// Members of the group that answer, by their ids.
    pub peers: BTreeMap<u64, PeerState>,
    /// Peers that answer and do not belong to the group.
    pub others: Vec<PeerState>,
    /// Addresses that were asked in vain, and why.
    pub silent: Vec<(String, Error)>,
}

impl Survey {
    /// Asks the peers at these addresses, and all members that they know of.
    ///
    /// # Errors
    /// Nobody answers, or the answers are of two clusters.
    pub fn make(ask: &impl Ask, addresses: &[String]) -> Result<Survey, RestoreError> {
        let mut waiting: VecDeque<String> = addresses.iter().cloned().collect();
        let mut asked = BTreeSet::new();
        let (mut found, mut silent) = (BTreeMap::<u64, PeerState>::new(), Vec::new());
        while let Some(address) = waiting.pop_front() {
            if asked.len() >= ADDRESSES_MAX || address.is_empty() || !asked.insert(address.clone()) {
                continue;
            }
            match describe(ask, &address) {
                Ok(held) => {
                    let state = PeerState { address, held };
                    let members = state.held.membership.iter().flat_map(|membership| &membership.members);
                    waiting.extend(members.map(|member| member.address.clone()));
                    found.insert(state.id(), state);
                }
                Err(error) => silent.push((address, error)),
            }
        }
        Survey::of(addresses, found, silent)
    }

    fn of(
        addresses: &[String],
        found: BTreeMap<u64, PeerState>,
        silent: Vec<(String, Error)>,
    ) -> Result<Survey, RestoreError> {
        let Some(first) = found.values().next() else {
            let why = silent.last().map_or_else(|| "no address is given".into(), |(_, error)| error.message.clone());
            return Err(RestoreError::NoPeer { addresses: addresses.join(", "), why });
        };
        if let Some(other) = found.values().find(|peer| peer.held.cluster_id != first.held.cluster_id) {
            return Err(RestoreError::TwoClusters { a: other.address.clone(), b: first.address.clone() });
        }
        let cluster_id = <[u8; 16]>::try_from(&first.held.cluster_id[..]).unwrap_or_default();
        // Peers of an older group, which was replaced long ago, count for nothing.
        let newest = found.values().filter(|peer| peer.is_member()).map(PeerState::term).max().unwrap_or(0);
        let is_of_group = |peer: &PeerState| peer.is_member() && peer.term().saturating_add(MAX_TERM_AHEAD) >= newest;
        let memberships =
            found.values().filter(|peer| is_of_group(peer)).filter_map(|peer| peer.held.membership.as_ref());
        let Some(membership) = memberships.max_by_key(|membership| membership.index).cloned() else {
            let names: Vec<String> = found.values().map(PeerState::label).collect();
            return Err(RestoreError::NoMember { answered: names.join(", ") });
        };
        let (peers, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            found.into_iter().partition(|(_, peer)| is_of_group(peer));
        Ok(Survey { cluster_id, membership, peers, others: others.into_values().collect(), silent })
    }

    /// Voters that answer and take part, and all voters, in the half of the membership where fewer of them do.
    #[must_use]
    pub fn voters(&self) -> (usize, usize) {
        let count = |voters: &Vec<u64>| {
            let up = voters.iter().filter(|id| self.peers.get(id).is_some_and(PeerState::votes)).count();
            (up, voters.len())
        };
        let halves = [&self.membership.voters, &self.membership.voters_outgoing];
        let counts = halves.into_iter().filter(|voters| !voters.is_empty()).map(count);
        // The half that lacks most: up / voters is smallest.
        counts.min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1))).unwrap_or((0, 0))
    }

    /// Whether a majority answers, so that the group can go on by itself.
    #[must_use]
    pub fn has_majority(&self) -> bool {
        let (up, voters) = self.voters();
        up * 2 > voters
    }

    /// Refuses a restore that is not needed, or that would compete with another one. `own`: the number of this restore, if it was
    /// interrupted before.
    ///
    /// # Errors
    /// [`RestoreError::Majority`], [`RestoreError::Fenced`].
    pub fn check(&self, own: Option<u64>, force: bool) -> Result<(), RestoreError> {
        if self.has_majority() {
            let (up, voters) = self.voters();
            let addresses: Vec<&str> = self.peers.values().map(|peer| peer.address.as_str()).collect();
            return Err(RestoreError::Majority { up, voters, addresses: addresses.join(",") });
        }
        let is_foreign = |peer: &&PeerState| peer.fence().is_some_and(|(restore, _)| Some(restore) != own);
        if let Some(peer) = self.peers.values().find(is_foreign).filter(|_| !force) {
            return Err(RestoreError::Fenced { peer: peer.label(), why: peer.why_fenced() });
        }
        // A voter that begins anew knows of the group that replaced this one.
        let newest = self.peers.values().map(PeerState::term).max().unwrap_or(0);
        let later = self.others.iter().find(|peer| peer.term() > newest.saturating_add(MAX_TERM_AHEAD));
        match later.filter(|_| !force) {
            Some(peer) => {
                let why = format!("it has met a restored group, of term {}", peer.term());
                Err(RestoreError::Fenced { peer: peer.label(), why })
            }
            None => Ok(()),
        }
    }

    /// The highest term that anybody has seen.
    #[must_use]
    pub(super) fn highest_term(&self) -> u64 {
        let all = self.peers.values().chain(&self.others);
        all.map(|peer| peer.term().max(peer.state().0).max(peer.held.fence_term)).max().unwrap_or(0)
    }

    /// Members of the group, whether they answer or not, and others that answer with a state.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let mut members = self.membership.members.clone();
        let extra = self.peers.values().filter(|peer| !contains(&self.membership, peer.id()));
        members.extend(extra.map(PeerState::member));
        members
    }

    /// Whether a member votes.
    #[must_use]
    pub fn is_voter(&self, id: u64) -> bool {
        self.membership.voters.contains(&id) || self.membership.voters_outgoing.contains(&id)
    }
}

fn describe(ask: &impl Ask, address: &str) -> Result<DescribePeerReply, Error> {
    let (held, _) = ask.ask(address, &DescribePeer::default())?;
    check(&held).map(|()| held)
}

/// Refuses a description that no peer gives.
pub(super) fn check(held: &DescribePeerReply) -> Result<(), Error> {
    match held.cluster_id.len() == 16 && is_sound(held) {
        true => Ok(()),
        false => Err(Error::new(tessera_wire::Code::Invalid, "it does not describe a peer")),
    }
}
