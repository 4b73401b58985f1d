//! Whether the others reach the leader.
//!
//! A leader's heartbeats go out over connections that it has opened, and are answered over the same ones. So a leader to which nobody can
//! open a connection (a firewall, a wrong address, a full queue of its socket) leads on, and serves nobody. Its followers ask it for an
//! answer now and then, over connections of their own, and say with their answers for how long they have had none.

use super::Peer;
use std::collections::BTreeMap;
use tessera_failpoint as failpoint;

/// Ticks between two frames by which a follower finds out.
const PROBE_TICKS: u64 = 10;
/// A leader that a majority has not reached for this long hands leadership over.
const UNREACHED_MS: u64 = 5_000;
/// Ticks between two attempts to hand it over.
const OFFER_TICKS: u64 = 50;

/// The way to a leader, and from others to this one.
#[derive(Default)]
pub(super) struct Reaching {
    leader: u64,
    /// Since when the leader owes an answer to a frame of this peer, ns.
    unanswered_ns: Option<i64>,
    /// For how long others have not reached this leader, as they said last, in ms.
    of_others: BTreeMap<u64, u64>,
    /// The tick of the next attempt to hand leadership over.
    offers_at: u64,
}

impl Reaching {
    /// A frame is sent.
    pub fn asks(&mut self, to: u64, now_ns: i64) {
        if to == self.leader {
            self.unanswered_ns.get_or_insert(now_ns);
        }
    }

    /// A frame was answered. `unreached_ms`: what the answer says of the way back.
    pub fn answered(&mut self, by: u64, unreached_ms: u64) {
        if by == self.leader {
            self.unanswered_ns = None;
        }
        self.of_others.insert(by, unreached_ms);
    }
}

impl Peer {
    /// For how long a leader has not answered frames of this peer, in ms. 0: this is not its leader, or answers.
    pub(super) fn unreached_ms(&self, leader: u64) -> u64 {
        let since_ns = self.reaching.unanswered_ns.filter(|_| leader == self.reaching.leader);
        since_ns.map_or(0, |at| u64::try_from(self.now_ns.saturating_sub(at) / 1_000_000).unwrap_or(0))
    }

    /// Asks the leader for an answer, if this peer follows one and nothing else is on its way there.
    pub(super) fn probe_leader(&mut self) {
        let leader = self.standing.leader.filter(|leader| *leader != self.id()).unwrap_or(0);
        if self.reaching.leader != leader {
            self.reaching = super::Reaching { leader, ..super::Reaching::default() };
        }
        let is_idle = self.lines.get(&leader).is_none_or(super::sending::Line::is_idle);
        if leader != 0 && is_idle && self.ticks.is_multiple_of(PROBE_TICKS) {
            self.send_frame(leader, Vec::new(), Vec::new());
        }
    }

    /// Whether another peer has not reached this leader for long. One that is silent may reach it.
    fn is_unreached_by(&self, id: u64) -> bool {
        let unreached_ms = self.reaching.of_others.get(&id).copied().unwrap_or(0);
        id != self.id() && self.is_heard(id) && unreached_ms >= UNREACHED_MS
    }

    /// Whether this leader should hand over because so many do not reach it that those who do are no majority. In a group of two the
    /// other one would lead alone.
    pub(super) fn is_unreached(&self) -> bool {
        if self.ticks < self.reaching.offers_at || failpoint::is_active("consensus.leads_unreached") {
            return false;
        }
        let lacks_majority = |voters: &[u64]| {
            let unreached = voters.iter().filter(|id| self.is_unreached_by(**id)).count();
            voters.len() > 2 && 2 * (voters.len() - unreached) <= voters.len()
        };
        let membership = self.membership();
        lacks_majority(&membership.voters) || lacks_majority(&membership.voters_outgoing)
    }

    /// This leader hands over because it is not reached.
    pub(super) fn gives_way(&mut self) {
        let membership = self.membership();
        let members = membership.members.iter().filter(|member| self.is_unreached_by(member.id));
        tracing::warn!(
            "this peer leads, and {} have not reached it at {} for {UNREACHED_MS} ms, although it reaches them: it hands leadership over; \
             check that address, and firewalls before it",
            members.map(|member| &*member.name).collect::<Vec<_>>().join(", "),
            self.config.member.address
        );
        self.reaching.offers_at = self.ticks + OFFER_TICKS;
    }
}
