//! Events that wait while the core's thread is busy.

use super::*;
use crate::config::Config;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tessera_net::BufferPool;
use tessera_net::dialer::NoService;
use tessera_wire::meta::*;
use tessera_wire::{Hello, PROTOCOL_VERSION, Request};

const WAIT: Duration = Duration::from_secs(30);
const ALICE: u64 = 1;
const BOB: u64 = 2;

fn dialer(client_id: u64) -> Dialer {
    let (protocol_version, role, release) = (PROTOCOL_VERSION, Role::Client as i32, "test".into());
    let hello = Hello { protocol_version, role, client_id, release, ..Hello::default() };
    Dialer::new(hello, Arc::new(NoService), BufferPool::new(1 << 20))
}

/// Asks until the manager leads.
fn ask<R: Request>(client: &Dialer, manager: &Endpoint, request: &R) -> R::Reply {
    let deadline = Instant::now() + WAIT;
    loop {
        match client.call_wait(manager, request, vec![], WAIT) {
            Ok((reply, _)) => return reply,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

/// Sends a request whose answer nobody waits for.
fn send<R: Request>(client: &Dialer, manager: &Endpoint, request: &R) {
    client.call(manager, R::KIND, request.encode_to_vec().into(), vec![], WAIT, Box::new(|_| ()));
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The end of a connection takes its turn behind the requests that came on it. The client has reconnected meanwhile, and its sign of life
/// on the new connection is handled first.
#[test]
fn a_client_that_came_back_before_its_old_end_is_handled_keeps_its_locks() {
    let dir = tempfile::tempdir().unwrap();
    let listen = [Endpoint::Tcp("127.0.0.1:0".into())];
    let config = Config { lock_orphan_ms: 100, ..Config::default() };
    let server = ManagerServer::start(ServeOptions::new(dir.path(), &listen, config)).unwrap();
    let (manager, bob) = (&server.endpoints()[0].clone(), dialer(BOB));
    let alice = dialer(ALICE);
    let hold = HoldLocks { machine: "here".into(), ..HoldLocks::default() };
    let hold = HoldLocks { next_table: ask(&alice, manager, &hold).next_table, ..hold };
    let table = ask(&alice, manager, &hold).table;
    ask(&bob, manager, &hold);
    let set = |client: &Dialer, seq| {
        let (family, mode) = (LockFamily::Posix as i32, LockMode::Write as i32);
        let lock =
            FileLock { ino: 5, owner: 1, family, mode, start: 0, end: 9, pid: 77, fence: None, may_be_shared: false };
        ask(client, manager, &SetLock { seq, table, lock: Some(lock), ..SetLock::default() }).outcome()
    };
    assert_eq!(set(&alice, 1), LockOutcome::Granted);

    let (held, is_held) = channel();
    let (go_on, goes_on) = channel::<()>();
    let wait = move || {
        held.send(()).unwrap();
        let _ = goes_on.recv();
    };
    server.shared.inbox.push(None, In::Run(Box::new(wait)));
    is_held.recv().unwrap();
    let waiting = |count| until("requests arrive", || server.shared.inbox.len() == count);
    (0..2).for_each(|_| send(&alice, manager, &GetAttr { ino: 1, want_lease: false }));
    waiting(2);
    alice.hang_up(manager);
    waiting(3);
    let alice = dialer(ALICE);
    send(&alice, manager, &CancelLock { seq: 0, table });
    waiting(4);
    drop(go_on);
    // Longer than the locks of a client that is gone last. Alice's next sign of life is due in 7.5 s.
    for seq in 1..=10 {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(set(&bob, seq), LockOutcome::Refused);
    }
    assert!(server.stop().is_none());
}
