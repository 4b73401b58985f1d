//! Peers whose bytes are not of this protocol. The log names each once, until it speaks the protocol: whoever dials one would
//! repeat the line with each attempt.

use parking_lot::Mutex;
use std::collections::BTreeSet;

/// Most peers that are remembered. Further ones are not named: whoever reaches a port could fill the log.
const MOST_PEERS: usize = 1024;

static PEERS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Whether the log is to name `peer`.
pub fn is_first(peer: &str) -> bool {
    let mut peers = PEERS.lock();
    peers.len() < MOST_PEERS && peers.insert(peer.to_string())
}

/// `peer` speaks the protocol.
pub fn forget(peer: &str) {
    PEERS.lock().remove(peer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_named_once_until_it_speaks_the_protocol() {
        assert!(is_first("a test's peer") && !is_first("a test's peer"));
        forget("a test's peer");
        assert!(is_first("a test's peer"));
        forget("a test's peer");
    }
}
