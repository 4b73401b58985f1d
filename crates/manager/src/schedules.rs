//! The inbox under many schedules of threads: no wake-up is lost, and the requests of a connection stay in order.

mod sync {
    pub(crate) use tessera_interleave::{Condvar, Mutex, MutexGuard};
}

/// The production code, with locks that the test schedules.
#[allow(clippy::duplicate_mod, dead_code, reason = "the tests need the queue only")]
#[path = "inbox.rs"]
mod inbox;

use inbox::Inbox;
use shuttle::thread;
use std::sync::Arc;
use std::time::Duration;
use tessera_interleave::{explore, fails};

const SCHEDULES: usize = 2_000;
const CONNECTIONS: u64 = 3;
const REQUESTS: u64 = 3;

/// Each connection sends its requests, and something comes from no connection, while the core's thread takes all.
fn all_arrive_in_order() {
    let inbox = Arc::new(Inbox::default());
    let senders: Vec<_> = (0..=CONNECTIONS)
        .map(|sender| {
            let inbox = inbox.clone();
            let connection = (sender < CONNECTIONS).then_some(sender);
            thread::spawn(move || (0..REQUESTS).for_each(|number| inbox.push(connection, (sender, number))))
        })
        .collect();
    let mut next = [0; CONNECTIONS as usize + 1];
    for _ in 0..(CONNECTIONS + 1) * REQUESTS {
        let (sender, number) = inbox.take_within(Duration::from_secs(60)).expect("a wait never times out here");
        assert_eq!(number, next[sender as usize], "sender {sender}");
        next[sender as usize] += 1;
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    assert!(inbox.take().is_none(), "each is taken once");
}

#[test]
fn no_wake_up_is_lost_and_requests_stay_in_order() {
    explore(SCHEDULES, all_arrive_in_order);
    for mistake in ["manager.inbox_waits_unannounced", "manager.inbox_reorders"] {
        let _mistake = tessera_failpoint::activate(mistake);
        assert!(fails(SCHEDULES, all_arrive_in_order), "{mistake} is not noticed");
    }
}

/// The turns themselves, with the locks of production.
#[test]
fn connections_take_turns_and_their_requests_stay_in_order() {
    let inbox = crate::inbox::Inbox::default();
    for (connection, item) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (3, "c1"), (2, "b2")] {
        inbox.push(Some(connection), item);
    }
    inbox.push(None, "first");
    let order: Vec<&str> = std::iter::from_fn(|| inbox.take()).collect();
    assert_eq!(order, ["first", "a1", "b1", "c1", "a2", "b2", "a3"]);
    inbox.push(Some(1), "later");
    assert_eq!(inbox.take_within(Duration::from_secs(60)), Some("later"));
    assert_eq!(inbox.take_within(Duration::ZERO), None);
}
