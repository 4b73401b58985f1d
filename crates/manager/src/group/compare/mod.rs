//! Comparisons of the managers' databases (P7): page checksums find rot, this finds a database that differs because of a bug, an SQLite
//! fault or bad memory.
//!
//! The leader goes through the database in *parts* of a few MiB. For each it proposes a `CompareMetadata`, and every manager computes the
//! digest of the part as it is after that entry, beside its core. The standbys report, the leader judges ([`judge`]). A part is read in a
//! fraction of a second, so no read transaction keeps the write-ahead log from being checkpointed for long; the pauses are between the
//! parts. What differs in a row stays different, so parts of different moments find it as well as one snapshot of everything would.
//!
//! What follows from a difference is soft state of the leader: another one begins anew. The manager that differs leaves a note, and says so
//! in its reports, so that a later leader does not need a majority again.

mod job;
mod judge;
mod own;

pub use job::{DigestDone, DigestJob};
pub(super) use own::{OwnState, REPORT_TOKEN};

use super::{Manager, State};
use crate::config::ns;
use crate::internal::{CompareMetadata, Internal};
use bytes::Bytes;
use judge::{Verdict, judge, table_that_differs};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{Member, PeerKind};
use tessera_wire::meta::{
    ComparisonResult, MetadataComparison, PartDigest, ReportDigest, ReportDigestReply, TablePosition,
};
use tessera_wire::{Code, Error};

/// Bytes of values in a part at most.
const PART_BYTES: u64 = 4 << 20;
/// A new leader compares this long after it was elected, unless it is to compare more often.
const FIRST_MS: u64 = 60_000;
/// As much later a comparison that found a difference, or did not end, is repeated.
const AGAIN_MS: u64 = 600_000;
/// Limit of the wait for a manager that answers otherwise.
const WAIT_NS: i64 = 30_000_000_000;
/// The same for one that is known to differ: it ends when it has a snapshot, and its next start knows nothing of the part.
const WAIT_KNOWN_NS: i64 = 3_000_000_000;

/// The comparisons of a leader.
#[derive(Default)]
pub(super) struct Comparisons {
    /// When the next one begins.
    due_ns: i64,
    pass: Option<Pass>,
    /// The entry after which managers were found to differ, and what those reported.
    wrong: Option<(u64, BTreeMap<u64, PartDigest>)>,
    /// Managers that were found to differ, by this leader or by an earlier one, and have not reported since with a database that replaces
    /// that one.
    known_wrong: BTreeSet<u64>,
}

/// One comparison.
struct Pass {
    from: TablePosition,
    /// The next part begins then.
    not_before_ns: i64,
    /// The part that is being compared.
    part: Option<Part>,
    /// Managers that reported every part so far; `None`: there was none.
    compared: Option<BTreeSet<u64>>,
}

struct Part {
    /// Its entry, once that is committed.
    seq: Option<u64>,
    asked_ns: i64,
    reports: BTreeMap<u64, PartDigest>,
}

impl Manager {
    /// Begins to lead.
    pub(super) fn plan_comparisons(&mut self, now_ns: i64) {
        self.forget_report();
        let due_ns = now_ns.saturating_add(ns(FIRST_MS.min(self.config.metadata_compare_every_ms)));
        self.comparisons = Comparisons { due_ns, ..Comparisons::default() };
    }

    /// The leader's tick.
    pub(super) fn tend_comparisons(&mut self, now_ns: i64) {
        let wanted = self.take_wanted();
        if self.comparisons.pass.is_none() && (wanted || self.is_due(now_ns)) && self.can_compare() {
            let from = TablePosition::default();
            let pass = Pass { from, not_before_ns: now_ns, part: None, compared: None };
            (self.comparisons.pass, self.comparisons.wrong) = (Some(pass), None);
        }
        self.ask_for_part(now_ns);
        self.judge_part(now_ns);
        let is_running = self.comparisons.pass.is_some();
        if let State::Leading(core) = &mut self.state {
            core.soft.comparison.last.running = is_running;
        }
    }

    fn is_due(&self, now_ns: i64) -> bool {
        self.config.metadata_compare_every_ms > 0 && now_ns >= self.comparisons.due_ns
    }

    fn can_compare(&self) -> bool {
        !self.own.reads() && self.active_managers().len() > 1
    }

    fn take_wanted(&mut self) -> bool {
        match &mut self.state {
            State::Leading(core) => std::mem::take(&mut core.soft.comparison.wanted),
            _ => false,
        }
    }

    fn ask_for_part(&mut self, now_ns: i64) {
        let (State::Leading(core), Some(pass)) = (&mut self.state, &mut self.comparisons.pass) else { return };
        if pass.part.is_some() || now_ns < pass.not_before_ns {
            return;
        }
        let bytes_per_s = self.config.metadata_scrub_bytes_per_s.max(1);
        let max_bytes = PART_BYTES.min(bytes_per_s);
        let pause_ns = u128::from(max_bytes) * 1_000_000_000 / u128::from(bytes_per_s);
        pass.not_before_ns = now_ns.saturating_add(pause_ns as i64);
        pass.part = Some(Part { seq: None, asked_ns: now_ns, reports: BTreeMap::new() });
        core.propose(CompareMetadata { from: Some(pass.from.clone()), max_bytes }.propose());
    }

    /// The leader has committed an entry. If it asks for a digest, the leader computes its own.
    pub(super) fn follow_asked(&mut self, seq: u64) {
        let State::Leading(core) = &mut self.state else { return };
        let Some(asked) = core.soft.comparison.asked.take() else { return };
        if let Some(part) = self.comparisons.pass.as_mut().and_then(|pass| pass.part.as_mut()) {
            part.seq.get_or_insert(seq);
            self.begin_digest(seq, asked);
        }
    }

    /// Another manager reports what it computed.
    pub(super) fn take_report(&mut self, body: &[u8]) -> Result<Bytes, Error> {
        let report = ReportDigest::decode(body).map_err(|error| Error::new(Code::Invalid, error.to_string()))?;
        if report.cluster_id != self.peer.log().identity().cluster_id {
            return Err(Error::new(Code::WrongCluster, "a digest of another cluster's metadata has no meaning here"));
        }
        if self.core().is_none() {
            return Err(super::members::not_leading(&self.peer));
        }
        let (peer_id, log_seq, digest) = (report.peer_id, report.log_seq, report.digest.clone().unwrap_or_default());
        self.add_report(report);
        let part = self.comparisons.pass.as_ref().and_then(|pass| pass.part.as_ref());
        let waits = part.is_some_and(|part| part.seq == Some(log_seq));
        let wrong = self.comparisons.wrong.as_ref();
        // A manager that was rebuilt meanwhile may apply the entry again, and reports what is right.
        let differs = wrong.is_some_and(|(seq, found)| *seq == log_seq && found.get(&peer_id) == Some(&digest));
        Ok(ReportDigestReply { waits, differs, log_seq }.encode_to_vec().into())
    }

    pub(super) fn add_report(&mut self, report: ReportDigest) {
        let is_manager = self.voting_managers().iter().any(|member| member.id == report.peer_id);
        let Some(part) = self.comparisons.pass.as_mut().and_then(|pass| pass.part.as_mut()) else { return };
        if part.seq == Some(report.log_seq) && is_manager {
            part.reports.insert(report.peer_id, report.digest.unwrap_or_default());
            match report.differs {
                true => self.comparisons.known_wrong.insert(report.peer_id),
                false => self.comparisons.known_wrong.remove(&report.peer_id),
            };
            self.judge_part(self.peer.now_ns());
        }
    }

    fn voting_managers(&self) -> Vec<Member> {
        let membership = self.peer.membership();
        let votes = |member: &&Member| member.kind() == PeerKind::Manager && membership.voters.contains(&member.id);
        membership.members.iter().filter(votes).cloned().collect()
    }

    /// Managers that vote and were heard lately, this one included.
    fn active_managers(&self) -> Vec<u64> {
        self.voting_managers().iter().map(|member| member.id).filter(|id| self.peer.is_heard(*id)).collect()
    }

    /// Judges the part under way, if nobody else is going to report.
    fn judge_part(&mut self, now_ns: i64) {
        let part = self.comparisons.pass.as_ref().and_then(|pass| pass.part.as_ref());
        let Some(part) = part else { return };
        let is_late = |limit_ns| now_ns >= part.asked_ns.saturating_add(limit_ns);
        if part.seq.is_none() {
            // Its entry was not written, because the disk was full.
            if is_late(WAIT_NS) {
                self.give_up_pass(now_ns);
            }
            return;
        }
        let limit_ns = |id: &u64| if self.comparisons.known_wrong.contains(id) { WAIT_KNOWN_NS } else { WAIT_NS };
        // One that has started since has applied the entry before, and does not report.
        let has_forgotten = |id: &u64| self.peer.has_started_since(*id, part.asked_ns);
        let is_awaited = |id: &u64| !part.reports.contains_key(id) && !is_late(limit_ns(id)) && !has_forgotten(id);
        if self.active_managers().iter().any(is_awaited) {
            return;
        }
        let Some((mut pass, mut part)) =
            self.comparisons.pass.take().and_then(|mut pass| pass.part.take().map(|part| (pass, part)))
        else {
            return;
        };
        // The report of a manager that has left the group since does not count.
        let voting: BTreeSet<u64> = self.voting_managers().iter().map(|member| member.id).collect();
        part.reports.retain(|id, _| voting.contains(id));
        self.comparisons.known_wrong.retain(|id| voting.contains(id));
        let (seq, reports) = (part.seq.unwrap_or_default(), self.comparable(part.reports));
        let Some(own) = reports.get(&self.peer.id()).filter(|_| reports.len() > 1) else {
            return self.give_up_pass(now_ns);
        };
        let verdict = judge(&reports, &self.comparisons.known_wrong, self.voting_managers().len());
        if verdict != Verdict::Equal && !failpoint::is_active("manager.differences_ignored") {
            return self.found_difference(now_ns, seq, verdict, &reports);
        }
        let before = pass.compared.take().unwrap_or_else(|| reports.keys().copied().collect());
        let compared: BTreeSet<u64> = before.into_iter().filter(|id| reports.contains_key(id)).collect();
        match own.end.clone() {
            Some(end) => {
                (pass.from, pass.compared) = (end, Some(compared));
                self.comparisons.pass = Some(pass);
            }
            None if compared.len() < 2 => self.give_up_pass(now_ns),
            None => {
                tracing::info!(seq, managers = compared.len(), "the managers' databases are equal");
                self.comparisons.due_ns = now_ns.saturating_add(ns(self.config.metadata_compare_every_ms));
                if !compared.is_disjoint(&self.comparisons.known_wrong) {
                    // What differed is gone, and the manager still waits for a snapshot.
                    self.comparisons.wrong = Some((seq, BTreeMap::new()));
                }
                let (result, managers) = (ComparisonResult::Equal as i32, compared.len() as u32);
                self.end_comparison(
                    now_ns,
                    MetadataComparison { result, managers, log_seq: seq, ..Default::default() },
                );
            }
        }
    }

    /// What can be compared with this manager's own digest: managers of another release may have another schema.
    fn comparable(&self, reports: BTreeMap<u64, PartDigest>) -> BTreeMap<u64, PartDigest> {
        let version = reports.get(&self.peer.id()).map(|own| own.schema_version);
        reports.into_iter().filter(|(_, digest)| Some(digest.schema_version) == version).collect()
    }

    /// Too few managers answered in time.
    fn give_up_pass(&mut self, now_ns: i64) {
        tracing::warn!("the managers' databases could not be compared: too few of them reported in time");
        self.comparisons.pass = None;
        self.compare_again(now_ns);
    }

    fn compare_again(&mut self, now_ns: i64) {
        let after_ns = ns(AGAIN_MS.min(self.config.metadata_compare_every_ms));
        self.comparisons.due_ns = now_ns.saturating_add(after_ns);
    }

    fn found_difference(&mut self, now_ns: i64, seq: u64, verdict: Verdict, reports: &BTreeMap<u64, PartDigest>) {
        self.compare_again(now_ns);
        let table = table_that_differs(reports);
        let (result, ids): (_, BTreeSet<u64>) = match verdict {
            Verdict::Minority(ids) => (ComparisonResult::Rebuilds, ids),
            _ => (ComparisonResult::Undecided, reports.keys().copied().collect()),
        };
        let is_among = |member: &&Member| ids.contains(&member.id);
        let differing: Vec<String> =
            self.voting_managers().iter().filter(is_among).map(|member| member.name.clone()).collect();
        let names = differing.join(", ");
        match result {
            ComparisonResult::Rebuilds => tracing::error!(
                seq,
                table,
                "the databases of these managers differ from what a majority has: {names}; each rebuilds its own from a snapshot of another"
            ),
            _ => tracing::error!(
                seq,
                table,
                "THE DATABASES OF THE MANAGERS DIFFER ({names}), and no majority agrees: nothing is changed; find out which is right; \
                 `tessera status` has the way out"
            ),
        }
        let (managers, log_seq) = (reports.len() as u32, seq);
        let last =
            MetadataComparison { result: result as i32, managers, log_seq, table, differing, ..Default::default() };
        self.end_comparison(now_ns, last);
        match (result, ids.contains(&self.peer.id())) {
            (ComparisonResult::Rebuilds, true) => {
                // The next leader compares again, and tells all: a snapshot of this manager would be wrong, too.
                tracing::error!("this manager's database is one of them: it hands leadership over");
                self.peer.set_may_lead(false);
            }
            (ComparisonResult::Rebuilds, false) => {
                self.comparisons.known_wrong.extend(&ids);
                let found = reports.iter().filter(|(id, _)| ids.contains(id));
                self.comparisons.wrong = Some((seq, found.map(|(&id, digest)| (id, digest.clone())).collect()));
            }
            // A manager that joins gets a snapshot of this one, whoever made the one before.
            _ => self.comparisons.wrong = Some((seq, BTreeMap::new())),
        }
    }

    fn end_comparison(&mut self, now_ns: i64, last: MetadataComparison) {
        let ended_ns = now_ns.saturating_add(self.wall_ahead_ns);
        if let State::Leading(core) = &mut self.state {
            core.soft.comparison.last = MetadataComparison { ended_ns, ..last };
        }
    }

    /// Whether a part was asked for whose entry is not committed.
    #[cfg(test)]
    pub(super) fn waits_for_entry(&self) -> bool {
        let part = self.comparisons.pass.as_ref().and_then(|pass| pass.part.as_ref());
        part.is_some_and(|part| part.seq.is_none())
    }

    /// The entry of the part for whose reports this leader waits.
    #[cfg(test)]
    pub(super) fn waits_for_reports_of(&self) -> Option<u64> {
        self.comparisons.pass.as_ref()?.part.as_ref()?.seq
    }

    /// The entry that a snapshot must hold, because managers that differ wait for one, or will.
    pub(super) fn snapshot_needed(&self) -> Option<u64> {
        self.comparisons.wrong.as_ref().map(|(seq, _)| *seq)
    }
}

/// The part that an entry asks for.
pub(super) fn asked_by(entry: &tessera_wire::log::LogEntry) -> Option<CompareMetadata> {
    let command = entry.commands.iter().rev().find(|command| command.kind == CompareMetadata::KIND)?;
    CompareMetadata::decode(command.body.clone()).ok()
}
