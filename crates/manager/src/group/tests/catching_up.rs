//! A standby that was away applies what the others committed in portions, and serves between them (P7, P12).

use super::*;
use crate::db::{FILE_NAME, LOG_KEPT_BYTES, digest};
use crate::group::backlog::BACKLOG_BYTES;
use crate::internal::{CompareMetadata, Internal, Proposal, RecordRefusal};
use std::path::Path;
use tessera_wire::log::{LogEntry, LoggedCommand};
use tessera_wire::meta::{ChangePeer, PeerChange};

/// Entries that the others commit while one is away.
const ENTRIES: u64 = 10_000;
/// As many entries as one call applies at most.
const PORTION: u64 = 64;

/// A group whose manager `at` is stopped while the others commit.
struct Away {
    group: Group,
    leader: usize,
    at: usize,
}

fn keeps_log() -> Config {
    Config { snapshot_log_bytes: u64::MAX, metadata_compare_every_ms: 0, ..config() }
}

impl Away {
    fn new(kinds: &[PeerKind], config: Config, entries: u64) -> Away {
        let mut group = Group::with(kinds, config);
        let leader = group.settle_leader();
        group.ticks(60);
        let at = kinds.iter().enumerate().position(|(at, kind)| at != leader && *kind == MANAGER).unwrap();
        group.kill(at);
        let mut away = Away { group, leader, at };
        away.commit(entries);
        away
    }

    fn commit(&mut self, entries: u64) {
        for i in 0..entries {
            let name = format!("{}", self.group.next);
            self.group.mkdir(self.leader, &name).unwrap();
            if i.is_multiple_of(100) {
                self.group.tick();
            }
        }
    }

    /// The stopped manager's database moves into a directory.
    fn move_into(&mut self, dir: &Path) {
        let lock = Db::lock(dir).unwrap();
        let host = &mut self.group.hosts[self.at];
        let image = host.db.take().unwrap().image().unwrap();
        let db = Db::replace(dir, lock.clone(), &mut &image[..]).unwrap();
        db.rely_on_log().unwrap();
        (host.db, host.home) = (Some(db), DbHome::in_dir(dir, lock));
    }

    /// It starts again, and learns what is committed.
    fn returns(&mut self) {
        self.group.restart(self.at);
        for _ in 0..20 {
            self.group.tick();
            if self.group.manager(self.at).is_behind() {
                return;
            }
        }
        panic!("it is not behind");
    }

    fn catch_up(&mut self) {
        let now_ns = self.group.now_ns;
        self.group.manager_mut(self.at).catch_up(now_ns);
        self.group.carry(self.at);
    }

    fn applied(&self) -> u64 {
        self.group.manager(self.at).applied().expect("no batch is open")
    }

    fn digests(&self) -> [[u8; 32]; 2] {
        [self.leader, self.at].map(|at| digest(self.group.manager(at).db().unwrap()).unwrap())
    }
}

#[test]
fn p12_a_standby_that_is_far_behind_answers_between_portions() {
    let mut away = Away::new(&[MANAGER, MANAGER, VOTER], keeps_log(), ENTRIES);
    away.returns();
    let (mut asked, address) = (0, format!("h{}", away.leader));
    while away.group.manager(away.at).is_behind() {
        let before = away.applied();
        away.catch_up();
        assert!((1..=PORTION).contains(&(away.applied() - before)), "from {before} to {}", away.applied());
        let before = away.applied();
        let refused = away.group.lookup(away.at, "0").unwrap_err();
        assert_eq!((refused.code(), &refused.leader), (Code::NotLeader, &address));
        assert_eq!(away.applied(), before, "a client's request waits for no entry");
        asked += 1;
    }
    assert!(asked > ENTRIES / PORTION / 2, "asked {asked} times");
    let [leader, standby] = away.digests();
    assert_eq!(leader, standby);
}

/// The digest that an entry asks for is read as of that entry, and its read must end before the write-ahead log can begin anew.
#[test]
fn p7_a_standby_that_catches_up_keeps_its_write_ahead_log_short() {
    let often = Config { metadata_compare_every_ms: 500, metadata_scrub_bytes_per_s: 100_000, ..keeps_log() };
    let mut away = Away::new(&[MANAGER, MANAGER, MANAGER], often, ENTRIES);
    let dir = tempfile::tempdir().unwrap();
    away.move_into(dir.path());
    away.group.restart(away.at);
    let log_bytes = || dir.path().join(format!("{FILE_NAME}-wal")).metadata().unwrap().len();
    let (last, mut longest) = (away.group.manager(away.leader).applied().unwrap(), 0);
    while away.applied() < last {
        away.group.tick();
        longest = longest.max(log_bytes());
    }
    assert!(longest <= LOG_KEPT_BYTES, "{longest} bytes");
    let [leader, standby] = away.digests();
    assert_eq!(leader, standby);
    assert!(away.group.digests > 4, "only {} digests were read", away.group.digests);
}

/// The other managers have gone on: one that leads must have applied everything before.
#[test]
fn p7_a_manager_that_is_behind_does_not_campaign() {
    let mut away = Away::new(&[MANAGER, MANAGER, VOTER], keeps_log(), ENTRIES);
    away.returns();
    let expected = away.group.dump(away.leader);
    away.group.kill(away.leader);
    let mut ticks = 0;
    while away.group.manager(away.at).is_behind() {
        away.group.tick();
        assert!(!away.group.manager(away.at).peer().standing().leads, "after {ticks} ticks");
        ticks += 1;
    }
    assert!(ticks > 60, "after {ticks} ticks an election would be over");
    assert_eq!(away.group.dump(away.at), expected);
    assert_eq!(away.group.settle_leader(), away.at);
}

/// A standby to which entries of 1 MiB come faster than it applies them; some ask for a digest.
fn flooded(dir: &Path, entries: u64) -> Manager {
    let lock = Db::lock(dir).unwrap();
    let db = Db::create_with(dir, lock.clone(), [7; 16]).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let setup = Setup { home: DbHome::in_dir(dir, lock), ..setup(disk, PeerConfig::new(member(0, MANAGER), 1)) };
    let mut manager = Manager::join(db, setup).unwrap();
    for seq in 1..=entries {
        let error = Some(Error::new(Code::Invalid, "x".repeat(1 << 20)));
        let refusal = RecordRefusal { client_id: 1, op_id: seq, error }.propose();
        let compare = CompareMetadata { from: None, max_bytes: 1 << 20 }.propose();
        let of = |Proposal { kind, body }| LoggedCommand { kind, body, ..LoggedCommand::default() };
        let commands = [refusal].into_iter().chain(seq.is_multiple_of(10).then_some(compare)).map(of).collect();
        let entry = LogEntry { term: 1, seq, now_ns: 1, wall_ns: 1, commands };
        manager.committed(seq, 1, entry.encode_to_vec().into());
    }
    manager
}

/// P12: a manager that is slower than the group slows what it is sent, and computes no digests meanwhile: their reads would keep the
/// write-ahead log from beginning anew.
#[test]
fn p12_a_standby_keeps_no_more_entries_than_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = flooded(dir.path(), 100);
    assert!(manager.backlog.bytes() > 99 << 20);
    manager.catch_up(1);
    let left = manager.backlog.bytes();
    assert!((BACKLOG_BYTES - (2 << 20)..=BACKLOG_BYTES).contains(&left), "{left} bytes are left");
    assert!(manager.applied().unwrap() >= 36, "all before is applied");
    let digests = |manager: &mut Manager| {
        let actions = std::iter::from_fn(|| manager.poll());
        actions.filter(|action| matches!(action, GroupAction::Digest(_))).count()
    };
    assert_eq!(digests(&mut manager), 0);
    let wal_bytes = dir.path().join(format!("{FILE_NAME}-wal")).metadata().unwrap().len();
    assert!(wal_bytes <= LOG_KEPT_BYTES, "{wal_bytes} bytes");
    let before = manager.applied().unwrap();
    manager.catch_up(1);
    assert_eq!(manager.applied().unwrap(), before + 1, "from now on it answers after each portion");
    while manager.applied().unwrap() < 40 {
        manager.catch_up(1);
    }
    assert_eq!(digests(&mut manager), 1, "it computes digests again");
}

/// It would not take leadership over, and the leader would propose nothing for a second.
#[test]
fn p12_leadership_is_not_handed_to_a_manager_that_is_behind() {
    let mut away = Away::new(&[MANAGER, MANAGER, VOTER], keeps_log(), ENTRIES);
    away.returns();
    let peer_id = away.group.manager(away.at).peer().id();
    while !away.group.manager(away.leader).peer().has_caught_up(peer_id) {
        away.group.tick();
    }
    away.group.ticks(3);
    let transfer = ChangePeer { peer_id, change: PeerChange::Transfer as i32 };
    let refused = away.group.ask(away.leader, &transfer).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message.contains("left to apply"), "{refused}");
    assert!(away.group.manager(away.leader).peer().can_propose(), "the leader goes on");
    while away.group.manager(away.at).is_behind() {
        away.group.tick();
    }
    away.group.ticks(5);
    away.group.ask(away.leader, &transfer).unwrap();
    away.group.ticks(5);
    assert_eq!(away.group.settle_leader(), away.at);
}

/// A manager alone learns what is committed when it is elected. Until it has applied that it refuses, and names nobody.
#[test]
fn p7_a_manager_that_is_elected_behind_applies_everything_before_it_serves() {
    let mut group = Group::with(&[MANAGER], keeps_log());
    group.settle_leader();
    let image = group.manager_mut(0).image().unwrap();
    (0..1_000).for_each(|i| _ = group.mkdir(0, &format!("d{i}")).unwrap());
    group.kill(0);
    group.hosts[0].db = Some(Db::from_image(&image).unwrap());
    group.restart(0);
    let mut refused = 0;
    while group.manager(0).core().is_none() {
        group.tick();
        if group.manager(0).core().is_none() && group.manager(0).peer().standing().leads {
            let error = group.lookup(0, "d0").unwrap_err();
            assert_eq!((error.code(), &error.leader[..]), (Code::NotLeader, ""), "{error}");
            assert!(error.message.contains("before it serves"), "{error}");
            refused += 1;
        }
    }
    assert!(refused > 10, "{refused}");
    (0..1_000).for_each(|i| _ = group.lookup(0, &format!("d{i}")).unwrap());
}

#[test]
fn p7_a_snapshot_does_not_wait_behind_earlier_entries() {
    let mut away = Away::new(&[MANAGER, MANAGER, VOTER], keeps_log(), ENTRIES);
    away.returns();
    away.group.hosts[away.at].is_cut = true;
    away.group.manager_mut(away.leader).config.snapshot_log_bytes = 1_000;
    for _ in 0..3 {
        away.commit(50);
        away.group.ticks(4);
    }
    away.group.hosts[away.at].is_cut = false;
    let base = |away: &Away| away.group.manager(away.at).peer().log().base().index;
    let before = base(&away);
    while base(&away) == before {
        assert!(away.group.manager(away.at).is_behind(), "the entries are applied before the snapshot arrives");
        away.group.tick();
    }
    assert!(!away.group.manager(away.at).is_behind() && away.applied() >= base(&away));
    away.group.ticks(3);
    let [leader, standby] = away.digests();
    assert_eq!(leader, standby);
}
