//! The managers compare their databases: one that differs is found, and replaced where a majority knows what is right (P7).

use super::*;
use crate::db::DirLock;
use std::path::Path;
use tessera_wire::meta::{
    ComparisonResult, GetStatus, Maintain, MaintenanceJob, MetadataComparison, PartDigest, ReportDigest,
};

const THREE: [PeerKind; 3] = [MANAGER, MANAGER, MANAGER];
/// What a fault makes of the mode of the root directory.
const WRONG_MODE: i64 = 0o700;

/// Comparisons every two seconds, in many parts.
fn often() -> Config {
    Config { metadata_compare_every_ms: 2_000, metadata_scrub_bytes_per_s: 2_000, ..config() }
}

/// A report of an empty digest.
fn report_of(cluster: u8, peer_id: u64, log_seq: u64) -> ReportDigest {
    let (cluster_id, digest) = (vec![cluster; 16], Some(PartDigest::default()));
    ReportDigest { cluster_id, peer_id, log_seq, digest, differs: false }
}

impl Group {
    /// A group of managers that all vote, with some names.
    fn comparing(kinds: &[PeerKind], config: Config) -> Group {
        let mut group = Group::with(kinds, config);
        let leader = group.settle_leader();
        group.ticks(60);
        assert_eq!(group.manager(leader).peer().membership().voters.len(), kinds.len(), "all vote");
        (0..20).for_each(|i| _ = group.mkdir(leader, &format!("d{i}")).unwrap());
        group
    }

    /// A row of a manager's database changes without an entry.
    fn harm(&self, at: usize) {
        self.set_mode(at, WRONG_MODE);
    }

    fn is_harmed(&self, at: usize) -> bool {
        self.mode(at) == WRONG_MODE
    }

    fn set_mode(&self, at: usize, mode: i64) {
        let conn = self.manager(at).db().unwrap().conn();
        assert_eq!(conn.execute("UPDATE inodes SET mode = ?1 WHERE ino = 1", [mode]).unwrap(), 1);
    }

    fn mode(&self, at: usize) -> i64 {
        let conn = self.manager(at).db().unwrap().conn();
        conn.query_row("SELECT mode FROM inodes WHERE ino = 1", [], |row| row.get(0)).unwrap()
    }

    fn differs(&self, at: usize) -> bool {
        self.manager(at).own.differs_since.is_some()
    }

    /// Whether the leader's answer to a report says that others have yet to report, and that the manager differs.
    fn report(&mut self, at: usize, report: &ReportDigest) -> Result<(bool, bool), Code> {
        let call = Call::new(Address::Address(String::new()), 0, report, Vec::new(), 1_000);
        let answer = Answer { token: 0, result: self.deliver(at, &call) };
        answer.decode::<ReportDigest>().map(|(reply, _)| (reply.waits, reply.differs)).map_err(|error| error.code())
    }

    fn comparison(&mut self) -> MetadataComparison {
        let leader = self.settle_leader();
        self.manager_mut(leader).inspect(&GetStatus {}).unwrap().comparison.unwrap()
    }

    /// Time passes; a manager that ends is started again, as a supervisor would. Returns how often one ended.
    fn supervise(&mut self, until: impl Fn(&mut Group) -> bool) -> usize {
        let mut ended = 0;
        for _ in 0..2_000 {
            self.tick();
            for at in 0..self.hosts.len() {
                if matches!(&self.hosts[at].running, Running::Manager(manager) if manager.failed().is_some()) {
                    ended += 1;
                    self.kill(at);
                    self.restart(at);
                }
            }
            if self.leader().is_some() && until(self) {
                return ended;
            }
        }
        panic!("it does not come to an end: {:?}", self.comparison());
    }

    /// Until a comparison that begins now or later has found all managers equal.
    fn until_equal(&mut self) -> usize {
        let leader = self.settle_leader();
        let from = self.manager(leader).peer().log().last_index();
        let count = self.hosts.len() as u32;
        let ended = self.supervise(|group| {
            let last = group.comparison();
            last.result() == ComparisonResult::Equal && last.managers == count && last.log_seq > from + 40
        });
        self.ticks(10);
        (1..self.hosts.len()).for_each(|at| assert_eq!(self.dump(0), self.dump(at), "all managers hold the same"));
        ended
    }
}

#[test]
fn p7_equal_databases_are_found_equal_in_many_parts() {
    let mut group = Group::comparing(&THREE, often());
    assert_eq!(group.until_equal(), 0, "no manager ends");
    let last = group.comparison();
    let leader = group.settle_leader();
    let asked = group.manager(leader).metrics().gauges;
    assert!(asked.contains(&("metadata_managers_compared", 3)) && asked.contains(&("metadata_managers_differing", 0)));
    assert!(last.ended_ns > 0 && last.differing.is_empty(), "{last:?}");
}

#[test]
fn p7_a_standby_that_differs_is_rebuilt() {
    let mut group = Group::comparing(&THREE, often());
    let leader = group.settle_leader();
    let wrong = (leader + 1) % 3;
    group.harm(wrong);
    let name = format!("h{wrong}");
    group.supervise(|group| group.comparison().result() == ComparisonResult::Rebuilds);
    let found = group.comparison();
    assert_eq!((found.differing, &found.table[..], found.managers), (vec![name], "inodes", 3));
    let rebuilt = report_of(7, wrong as u64 + 1, found.log_seq);
    assert_eq!(group.report(leader, &rebuilt), Ok((false, false)), "another digest is that of another database");
    assert_eq!(group.until_equal(), 1, "it ended once");
    assert!(!group.is_harmed(wrong));
    assert_eq!(group.settle_leader(), leader, "the leader serves throughout");
}

/// Until its database is replaced, a manager that is known to differ does not lead.
#[test]
fn p7_a_manager_that_differs_does_not_take_over() {
    let mut group = Group::comparing(&THREE, often());
    let leader = group.settle_leader();
    let wrong = (leader + 1) % 3;
    group.harm(wrong);
    while group.manager(wrong).own.differs_since.is_none() {
        group.tick();
    }
    group.kill(leader);
    assert_ne!(group.settle_leader(), wrong);
    group.restart(leader);
    group.until_equal();
}

/// Whoever leads next compares anew. It does not wait for the manager that is known to differ, nor for the judge to come back.
#[test]
fn p7_a_manager_that_differs_is_rebuilt_without_its_judge() {
    for is_harm_undone in [false, true] {
        let mut group = Group::comparing(&THREE, often());
        let judge = group.settle_leader();
        let (wrong, next) = ((judge + 1) % 3, (judge + 2) % 3);
        let mode = group.mode(wrong);
        group.manager_mut(judge).no_snapshot_before = u64::MAX;
        group.harm(wrong);
        while !group.differs(wrong) {
            group.tick();
        }
        let began_ns = group.now_ns;
        group.kill(judge);
        if is_harm_undone {
            group.set_mode(wrong, mode);
        }
        assert_eq!(group.supervise(|group| !group.differs(wrong) && !group.is_harmed(wrong)), 1);
        assert!(group.now_ns - began_ns < 20_000 * MS, "the leader waits for no report");
        assert_eq!(group.settle_leader(), next);
        if !is_harm_undone {
            let found = group.comparison();
            assert_eq!((found.result(), found.differing), (ComparisonResult::Rebuilds, vec![format!("h{wrong}")]));
        }
        group.restart(judge);
        group.until_equal();
    }
}

/// A snapshot that is made for each new finding would always come too late.
#[test]
fn p7_a_manager_that_is_found_to_differ_again_waits_for_the_same_snapshot() {
    let mut group = Group::comparing(&THREE, often());
    let leader = group.settle_leader();
    let wrong = (leader + 1) % 3;
    group.manager_mut(leader).no_snapshot_before = u64::MAX;
    group.harm(wrong);
    while !group.differs(wrong) {
        group.tick();
    }
    let since = group.manager(wrong).own.differs_since;
    group.ticks(60);
    let found = group.comparison();
    assert_eq!(found.result(), ComparisonResult::Rebuilds);
    assert!(Some(found.log_seq) > since, "it was found again");
    assert_eq!(group.manager(wrong).own.differs_since, since);
}

/// A part whose entry a full disk kept from being written is not waited for.
#[test]
fn p7_databases_are_compared_again_after_the_disk_was_full() {
    let mut group = Group::comparing(&THREE, often());
    let leader = group.settle_leader();
    let limit = |group: &Group, pages: i64| {
        group.manager(leader).db().unwrap().conn().pragma_update(None, "max_page_count", pages).unwrap();
    };
    limit(&group, 1);
    for round in 0.. {
        // In one batch with what the tick proposes.
        for op_id in round * 100..round * 100 + 40 {
            let name = format!("{op_id:0250}").into();
            let body = MakeDir { op_id: 10_000 + op_id, parent: 1, name, ..MakeDir::default() }.encode_to_vec().into();
            let (connection, role, client_id, request_id, kind) = (1, Role::Client, ALICE, u64::MAX, MakeDir::KIND);
            let now_ns = group.now_ns;
            let event = Event::Request { connection, role, client_id, request_id, kind, body };
            group.manager_mut(leader).handle(now_ns, event);
        }
        group.tick();
        if group.manager(leader).waits_for_entry() {
            break;
        }
        assert!(round < 200, "the disk is never full when a part is asked for");
    }
    limit(&group, 1 << 30);
    group.until_equal();
}

#[test]
fn p7_a_leader_that_differs_hands_over_and_is_rebuilt() {
    let mut group = Group::comparing(&THREE, often());
    let wrong = group.settle_leader();
    group.harm(wrong);
    assert_eq!(group.until_equal(), 1);
    assert!((0..3).all(|at| !group.is_harmed(at)));
    assert_ne!(group.settle_leader(), wrong);
}

/// All peers hold a snapshot that the wrong leader made. The database must not be rebuilt from it.
#[test]
fn p7_a_snapshot_of_the_manager_that_differs_is_not_used() {
    let mut group = Group::comparing(&THREE, Config { metadata_compare_every_ms: 20_000, ..often() });
    let wrong = group.settle_leader();
    group.harm(wrong);
    let from = group.manager(wrong).peer().log().last_index();
    (0..300).for_each(|i| _ = group.mkdir(wrong, &format!("e{i}")).unwrap());
    group.ticks(20);
    assert_eq!(group.settle_leader(), wrong, "nothing is compared yet");
    let has_copied = |at| group.manager(at).peer().files().held().is_some_and(|held| held.index > from);
    assert!((0..3).all(has_copied), "the snapshot is everywhere");
    assert_eq!(group.until_equal(), 1);
    assert!((0..3).all(|at| !group.is_harmed(at)));
}

#[test]
fn p7_of_two_managers_that_differ_none_is_dropped() {
    let mut group = Group::comparing(&[MANAGER, MANAGER, VOTER], often());
    let leader = group.settle_leader();
    group.harm(1 - leader);
    assert_eq!(group.supervise(|group| group.comparison().result() == ComparisonResult::Undecided), 0);
    let found = group.comparison();
    assert_eq!((found.differing, &found.table[..]), (vec!["h0".to_string(), "h1".to_string()], "inodes"));
    group.ticks(200);
    assert_eq!(group.comparison().result(), ComparisonResult::Undecided);
    assert!(group.manager(0).failed().is_none() && group.manager(1).failed().is_none());
    assert!(group.is_harmed(1 - leader) && !group.is_harmed(leader), "nothing is changed");
    group.mkdir(leader, "on").unwrap();
}

/// The third manager could agree with either of the two that answer.
#[test]
fn p7_without_the_third_manager_nobody_decides() {
    let mut group = Group::comparing(&THREE, often());
    let leader = group.settle_leader();
    group.kill((leader + 2) % 3);
    group.harm((leader + 1) % 3);
    let undecided = |group: &mut Group| group.comparison().result() == ComparisonResult::Undecided;
    assert_eq!(group.supervise(undecided), 0);
    group.restart((leader + 2) % 3);
    assert_eq!(group.until_equal(), 1, "now two agree");
}

#[test]
fn p7_a_manager_that_differs_may_be_restarted_at_any_time() {
    for after in (0..60).step_by(3) {
        let mut group = Group::comparing(&THREE, often());
        let wrong = (group.settle_leader() + 1) % 3;
        group.harm(wrong);
        group.ticks(after);
        group.kill(wrong);
        group.ticks(after % 4);
        group.restart(wrong);
        group.until_equal();
        assert!(!group.is_harmed(wrong), "after {after} ticks");
    }
}

#[test]
fn p7_the_leader_may_change_while_databases_are_compared() {
    for after in (0..60).step_by(3) {
        let mut group = Group::comparing(&THREE, often());
        let leader = group.settle_leader();
        group.harm((leader + 1) % 3);
        group.ticks(after);
        group.manager_mut(leader).peer.transfer((leader + 1 + after % 2) as u64 % 3 + 1);
        group.until_equal();
        assert!((0..3).all(|at| !group.is_harmed(at)), "after {after} ticks");
    }
}

/// A leader that is cut off keeps nothing of its comparison.
/// It has applied the entry that asks for a digest, and has forgotten that: the leader would wait 30 s for its report.
#[test]
fn p12_nobody_waits_for_the_report_of_a_manager_that_started_again() {
    let mut group = Group::comparing(&THREE, often());
    let leader = group.settle_leader();
    let standby = (leader + 1) % 3;
    group.loses_reports = true;
    let asked = loop {
        group.tick();
        if let Some(seq) = group.manager(leader).waits_for_reports_of() {
            break seq;
        }
    };
    group.ticks(2);
    for at in [standby, (leader + 2) % 3] {
        assert!(group.manager(at).applied().unwrap() >= asked, "it applies what the leader has committed");
        group.kill(at);
        group.restart(at);
    }
    group.loses_reports = false;
    for ticks in 0.. {
        group.tick();
        if group.manager(leader).waits_for_reports_of() != Some(asked) {
            return;
        }
        assert!(ticks < 50, "{ticks} ticks, and it still waits");
    }
}

#[test]
fn p7_a_deposed_leader_judges_nobody() {
    for after in (0..40).step_by(3) {
        let mut group = Group::comparing(&THREE, often());
        let leader = group.settle_leader();
        group.harm((leader + 1) % 3);
        group.ticks(after);
        group.hosts[leader].is_cut = true;
        group.ticks(80);
        group.hosts[leader].is_cut = false;
        group.until_equal();
        assert!((0..3).all(|at| !group.is_harmed(at)), "after {after} ticks");
    }
}

/// What a standby did not apply is found, and the standby gets it.
#[test]
fn p7_a_standby_that_skipped_entries_is_rebuilt() {
    let mut group = Group::comparing(&THREE, often());
    let leader = group.settle_leader();
    group.kill((leader + 1) % 3);
    {
        let _mistake = tessera_failpoint::activate("manager.standby_skips_entry");
        (0..40).for_each(|i| _ = group.mkdir(leader, &format!("s{i}")).unwrap());
        group.ticks(5);
    }
    assert_ne!(group.dump((leader + 2) % 3), group.dump(leader), "it lacks something");
    group.restart((leader + 1) % 3);
    assert_eq!(group.until_equal(), 1);
}

/// The tests above would notice a leader that does not look.
#[test]
fn p7_a_leader_that_ignores_differences_leaves_them() {
    let _mistake = tessera_failpoint::activate("manager.differences_ignored");
    let mut group = Group::comparing(&THREE, often());
    let wrong = (group.settle_leader() + 1) % 3;
    group.harm(wrong);
    group.ticks(300);
    assert!(group.is_harmed(wrong) && group.manager(wrong).failed().is_none());
}

/// The directory of the only manager of a group, which is stopped.
struct Stopped {
    dir: tempfile::TempDir,
    lock: DirLock,
    /// The entry that its snapshot holds.
    held: u64,
}

impl Stopped {
    fn new() -> Stopped {
        let dir = tempfile::tempdir().unwrap();
        let lock = Db::lock(dir.path()).unwrap();
        let mut stopped = Stopped { dir, lock, held: 0 };
        let db = Db::create_with(stopped.path(), stopped.lock.clone(), [7; 16]).unwrap();
        let manager = Manager::found(db, stopped.setup()).unwrap();
        stopped.held = manager.peer().files().held().unwrap().index;
        stopped
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn setup(&self) -> Setup {
        let home = DbHome::in_dir(self.path(), self.lock.clone());
        let peer = PeerConfig::new(member(0, MANAGER), 1);
        Setup { home, disk: disk_of(self.path(), &self.lock).unwrap(), config: config(), peer }
    }

    /// The manager after ten seconds.
    fn resumed(&self) -> Manager {
        let Found::Manager(mut manager) = resume(self.path(), self.setup()).unwrap() else { panic!("it is gone") };
        (1..100).for_each(|tick| manager.handle(tick * 100 * MS, Event::Tick));
        *manager
    }
}

/// The note in the directory says which snapshot is right: until that is there, the manager goes on with its database and does not lead.
#[test]
fn p7_a_database_that_differs_is_replaced_once_a_right_snapshot_is_held() {
    let stopped = Stopped::new();
    let change = "UPDATE inodes SET mode = 448 WHERE ino = 1";
    assert_eq!(Db::open_with(stopped.path(), stopped.lock.clone()).unwrap().run(change, []).unwrap(), 1);
    let is_changed =
        |manager: &Manager| manager.db().unwrap().any("SELECT 1 FROM inodes WHERE mode = 448", []).unwrap();
    Db::mark_differing(stopped.path(), stopped.held + 1).unwrap();
    let manager = stopped.resumed();
    assert!(is_changed(&manager) && manager.core().is_none() && manager.failed().is_none(), "it waits");
    assert!(manager.metrics().gauges.contains(&("metadata_differs", 1)));
    drop(manager);
    Db::mark_differing(stopped.path(), stopped.held).unwrap();
    let manager = stopped.resumed();
    assert!(!is_changed(&manager));
    assert!(manager.core().is_some(), "it leads again");
    assert_eq!(Db::differs_since(stopped.path()).unwrap(), None);
}

/// The snapshot beside a database that is damaged, too, may be one of its own: the rebuilt database is not right by that.
#[test]
fn p7_a_database_that_is_rebuilt_from_an_earlier_snapshot_keeps_the_note() {
    let stopped = Stopped::new();
    Db::mark_differing(stopped.path(), stopped.held + 1).unwrap();
    Db::mark_damaged(stopped.path()).unwrap();
    for start in 0..2 {
        assert!(stopped.resumed().core().is_none(), "it does not lead after start {start}");
        assert_eq!(Db::differs_since(stopped.path()).unwrap(), Some(stopped.held + 1));
    }
    assert!(!Db::is_marked_damaged(stopped.path()), "it was rebuilt");
}

fn scrub(start: bool) -> Maintain {
    Maintain { what: MaintenanceJob::Scrub as i32, start }
}

#[test]
fn p7_without_comparisons_a_difference_stays_until_a_person_asks() {
    let mut group = Group::comparing(&THREE, Config { metadata_compare_every_ms: 0, ..often() });
    let leader = group.settle_leader();
    let wrong = (leader + 1) % 3;
    group.harm(wrong);
    group.ticks(1_000);
    assert_eq!(group.comparison(), MetadataComparison::default());
    assert!(group.ask(leader, &scrub(true)).unwrap().running);
    group.supervise(|group| !group.manager_mut(leader).inspect(&scrub(false)).unwrap().running);
    assert_eq!(group.comparison().result(), ComparisonResult::Rebuilds);
    group.supervise(|group| !group.is_harmed(wrong));
}

#[test]
fn p7_a_manager_alone_compares_nothing() {
    let mut group = Group::comparing(&[MANAGER], often());
    let leader = group.settle_leader();
    group.ask(leader, &scrub(true)).unwrap();
    group.ticks(30);
    assert!(!group.ask(leader, &scrub(false)).unwrap().running, "a scrub does not wait for it");
    assert_eq!(group.comparison(), MetadataComparison::default());
}

/// P14: a report that has no meaning changes nothing.
#[test]
fn p14_reports_of_others_are_refused() {
    let mut group = Group::comparing(&THREE, often());
    let leader = group.settle_leader();
    let report = |cluster, peer_id| report_of(cluster, peer_id, u64::MAX);
    let mut ask = |at, report: &ReportDigest| group.report(at, report);
    assert_eq!(ask(leader, &report(8, 1)), Err(Code::WrongCluster));
    assert_eq!(ask((leader + 1) % 3, &report(7, 1)), Err(Code::NotLeader));
    assert_eq!(ask(leader, &report(7, 1)), Ok((false, false)), "of an entry that asked for nothing");
    assert_eq!(ask(leader, &report(7, 99)), Ok((false, false)), "of a stranger");
    group.until_equal();
}
