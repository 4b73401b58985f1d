//! A manager whose directory is moved, removed or replaced.

use super::*;
use std::path::PathBuf;

/// P8, P12: clients ask again: another manager takes over, and the answer that was lost is given there.
#[test]
fn p12_clients_of_a_manager_that_lost_its_directory_ask_again() {
    for lost in [Displaced::Gone(PathBuf::from("m/manager.db")), Displaced::Replaced(PathBuf::from("m/manager.db"))] {
        let mut group = Group::new(&[MANAGER, MANAGER, VOTER]);
        let first = group.settle_leader();
        group.ticks(60);
        let request = MakeDir { op_id: 5, parent: 1, name: b"d".to_vec(), ..MakeDir::default() };
        let event = Event::Request {
            connection: 1,
            role: Role::Client,
            client_id: ALICE,
            request_id: 77,
            kind: Kind::MakeDir,
            body: request.encode_to_vec().into(),
        };
        let now_ns = group.now_ns;
        group.manager_mut(first).handle(now_ns, event);
        group.manager_mut(first).lose_directory(&lost);
        group.carry(first);
        let waited = group.replies.remove(&77).unwrap().unwrap_err();
        let later = group.ask(first, &request).unwrap_err();
        assert!(waited.is_retryable() && later.is_retryable(), "{waited}; {later}");
        let second = group.settle_leader();
        assert_ne!(second, first);
        group.ask(second, &request).unwrap();
        assert_eq!(group.lookup(second, "d").unwrap(), group.ask(second, &request).unwrap());
    }
}
