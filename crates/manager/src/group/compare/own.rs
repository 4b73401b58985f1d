//! A manager's own part in a comparison: it computes the digest that an entry asks for, reports it, and replaces its database if that is
//! wrong.

use super::job::Reader;
use super::{DigestDone, DigestJob};
use crate::core::Action;
use crate::db::{self, Db};
use crate::error::Failure;
use crate::group::{DbHome, GroupAction, Manager};
use crate::internal::CompareMetadata;
use tessera_wire::consensus::PeerKind;
use tessera_wire::meta::{PartDigest, ReportDigest};
use tessera_wire::rpc::{Answer, Call, Peer as Address};
use tessera_wire::{Code, Error};

/// Token of the calls that report. A core's tokens begin with its term, and are smaller.
pub(in crate::group) const REPORT_TOKEN: u64 = 1 << 62;
/// Ticks between two reports of the same digest.
const AGAIN_TICKS: u64 = 10;
/// Limit of the wait for the answer in milliseconds.
const TIMEOUT_MS: u64 = 3_000;

/// See the module.
#[derive(Default)]
pub(in crate::group) struct OwnState {
    /// A [`DigestJob`] is under way.
    reader: Option<Reader>,
    /// The digest that the leader has not judged yet.
    report: Option<ReportDigest>,
    /// The database differs from the others': a snapshot that holds this entry replaces it.
    pub(in crate::group) differs_since: Option<u64>,
    /// Such a snapshot is held: the next start takes it.
    pub(in crate::group) is_dropped: bool,
}

impl OwnState {
    /// Whether a [`DigestJob`] is under way.
    pub(super) fn reads(&self) -> bool {
        self.reader.is_some()
    }
}

impl Manager {
    /// The entry that was just applied asks for a digest of the state after it.
    pub(in crate::group) fn begin_digest(&mut self, seq: u64, part: CompareMetadata) {
        // A snapshot that a deposed leader still makes could otherwise pass for one of a manager that is right (`tend_own`). A manager that
        // is far behind applies one portion after another before the job begins, and would report too late.
        if self.own.reads() || self.is_far_behind() || self.copies && self.core().is_none() {
            return;
        }
        let Some(db) = self.db() else { return };
        let job = match (&self.home, db.file()) {
            (DbHome::Dir { .. }, Some(file)) => DigestJob::begin(file, seq, part),
            _ => {
                let digest = db::part(db.conn(), &part.from.unwrap_or_default(), part.max_bytes);
                return self.take_digest(DigestDone { seq, digest });
            }
        };
        match job {
            Ok(job) => {
                self.own.reader = Some(job.reader());
                self.actions.push_back(GroupAction::Digest(job));
            }
            Err(error) => tracing::error!(%error, "the database cannot be compared"),
        }
    }

    /// Takes the result of a [`DigestJob`].
    pub fn digest_done(&mut self, now_ns: i64, done: DigestDone) {
        assert!(self.own.reads(), "a digest was asked for");
        self.own.reader = None;
        self.take_digest(done);
        self.settle(now_ns);
    }

    /// A [`DigestJob`] could not be run.
    pub fn digest_failed(&mut self) {
        self.own.reader = None;
    }

    fn take_digest(&mut self, DigestDone { seq, digest }: DigestDone) {
        let digest = match digest {
            Ok(digest) => digest,
            Err(error) => return tracing::warn!(error = %Failure::from(error), seq, "the database cannot be compared"),
        };
        match self.core() {
            Some(_) => self.add_report(self.own_report(seq, digest)),
            None => self.report(seq, digest),
        }
    }

    fn own_report(&self, log_seq: u64, digest: PartDigest) -> ReportDigest {
        let (cluster_id, peer_id) = (self.peer.log().identity().cluster_id.to_vec(), self.peer.id());
        let differs = self.own.differs_since.is_some();
        ReportDigest { cluster_id, peer_id, log_seq, digest: Some(digest), differs }
    }

    fn report(&mut self, log_seq: u64, digest: PartDigest) {
        self.own.report = Some(self.own_report(log_seq, digest));
        self.send_report();
    }

    fn send_report(&mut self) {
        let leader = self.peer.leader().filter(|leader| leader.kind() == PeerKind::Manager);
        if let (Some(report), Some(leader)) = (&self.own.report, leader) {
            let address = Address::Address(leader.address.clone());
            let call = Call::new(address, REPORT_TOKEN, report, Vec::new(), TIMEOUT_MS);
            self.actions.push_back(GroupAction::Core(Action::Call(call)));
        }
    }

    /// The leader has judged a report, or waits for others.
    pub(in crate::group) fn report_answered(&mut self, answer: Answer) {
        // Without an answer it is sent again.
        let Ok((reply, _)) = answer.decode::<ReportDigest>() else { return };
        let is_of_last = self.own.report.as_ref().is_some_and(|report| report.log_seq == reply.log_seq);
        if !is_of_last || reply.waits {
            return;
        }
        self.own.report = None;
        // Found again, it waits for the same snapshot as before: one for each new finding would always come too late.
        if reply.differs && self.core().is_none() && self.own.differs_since.is_none() {
            self.note_difference(reply.log_seq);
        }
    }

    /// The database is wrong after entry `seq`.
    fn note_difference(&mut self, seq: u64) {
        tracing::error!(
            seq,
            "this manager's database differs from what a majority of the managers has: it leads no more, and its database is replaced by \
             the next snapshot of another manager"
        );
        if let DbHome::Dir { dir, .. } = &self.home
            && let Err(error) = Db::mark_differing(dir, seq)
        {
            tracing::error!(%error, "noting that the database differs");
        }
        self.differs_since(seq);
    }

    /// It does not lead until its database is replaced.
    pub(in crate::group) fn differs_since(&mut self, seq: u64) {
        self.own.differs_since = Some(seq);
        self.peer.set_may_lead(false);
    }

    /// The tick of a manager that does not lead.
    ///
    /// A snapshot that holds the entry at which the difference was found is right: it was made by a manager that led after that, which this
    /// one has not done, and the majority and its leader agreed. Earlier ones may be this manager's own.
    pub(in crate::group) fn tend_own(&mut self) {
        if self.ticks.is_multiple_of(AGAIN_TICKS) {
            self.send_report();
        }
        let held = self.peer.files().held().map_or(0, |held| held.index);
        if let Some(since) = self.own.differs_since.filter(|since| held >= *since && self.failed.is_none()) {
            self.own.is_dropped = true;
            let why = format!(
                "the manager's database differs from those of the other managers after entry {since}; start the manager again: it then \
                 rebuilds the database from the snapshot of entry {held} that another manager made"
            );
            self.fail(Error::new(Code::Unavailable, why));
        }
    }

    /// The database is about to be replaced: nothing may read its files any more, because the new ones have the same names.
    pub(in crate::group) fn end_digest(&self) {
        self.own.reader.iter().for_each(Reader::end);
    }

    /// The snapshot of entry `index` has replaced the database. An earlier one than the manager waits for may be wrong, too.
    pub(in crate::group) fn forget_difference(&mut self, index: u64) {
        if self.own.differs_since.take_if(|since| *since <= index).is_some() {
            self.peer.set_may_lead(true);
            if let Err(error) = self.home.forget_difference() {
                tracing::error!(%error, "the note that the database differs stays: the next start replaces the database again");
            }
        }
    }

    /// It leads from now on: what it reported to another leader has no meaning any more.
    pub(in crate::group) fn forget_report(&mut self) {
        self.own.report = None;
    }
}
