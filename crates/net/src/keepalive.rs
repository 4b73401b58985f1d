//! Keepalive frames: a process tells the peers that wait for it that it lives.
//!
//! A side that waits for an answer and hears nothing for [`SILENCE`] takes the peer for dead: its host is gone, or its process
//! has stopped. So the other side sends a frame without content every [`EVERY`] while a request has no answer. It does so
//! unasked, because it may not read: it holds requests back, or the connection's thread waits for a disk. One thread serves all
//! connections of the process; it never waits for a socket or a disk.

use crate::connection::Connection;
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between keepalive frames. The first one is sent when a peer has waited for one to three such times: three if none had waited
/// before.
pub(crate) const EVERY: Duration = Duration::from_millis(500);
/// Where no peer waits, the thread looks this often.
const DOZE: Duration = Duration::from_secs(1);
/// A peer that owes an answer and sends nothing for this long is dead. Several keepalive frames may be lost to a busy machine.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);
const _: () = assert!(SILENCE.as_millis() >= 6 * EVERY.as_millis() && DOZE.as_millis() <= 2 * EVERY.as_millis());

struct Watched {
    connections: Vec<Weak<Connection>>,
    has_thread: bool,
}

/// The connections of this process.
static WATCHED: Mutex<Watched> = Mutex::new(Watched { connections: Vec::new(), has_thread: false });

/// Sends keepalive frames on `connection` when its peer waits, for as long as it exists.
///
/// # Errors
/// No thread is free.
pub(crate) fn watch(connection: &Arc<Connection>) -> io::Result<()> {
    let mut watched = WATCHED.lock();
    if !watched.has_thread {
        std::thread::Builder::new().name("keepalive".into()).spawn(run)?;
        watched.has_thread = true;
    }
    watched.connections.push(Arc::downgrade(connection));
    Ok(())
}

/// Ends when the last connection is gone.
fn run() {
    let mut pause = EVERY;
    loop {
        std::thread::sleep(pause);
        // Nothing is locked while they send, or are dropped: a callback may open another connection.
        let connections: Vec<_> = WATCHED.lock().connections.iter().filter_map(Weak::upgrade).collect();
        let awaited = connections.iter().filter(|connection| connection.keep_alive()).count();
        pause = if awaited > 0 { EVERY } else { DOZE };
        drop(connections);
        let mut watched = WATCHED.lock();
        watched.connections.retain(|connection| connection.strong_count() > 0);
        if watched.connections.is_empty() {
            watched.has_thread = false;
            return;
        }
    }
}
