//! How calls leave the process: over `tessera-net`, or into a test's in-memory cluster.

use crate::rpc_table::is_transport;
use crate::view::SharedView;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_net::{Dialer, Endpoint};
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error};

/// Takes the answer of a call. Must not block: it may run on a connection's reading thread.
pub type Done = Box<dyn FnOnce(Answer) + Send>;

/// Carries calls.
pub trait Transport: Send + Sync + 'static {
    /// Sends `call`; `done` is called exactly once, from any thread, this one included.
    fn call(&self, call: Call, done: Done);

    /// How long requests have waited for a manager that answers nothing.
    fn manager_silence(&self) -> Duration {
        Duration::ZERO
    }
}

/// Whether the manager answers.
#[derive(Default)]
struct Silence {
    /// Requests without an answer.
    waiting: u32,
    /// Since when it has answered none.
    since: Option<Instant>,
}

impl Silence {
    fn ask(&mut self) {
        self.waiting += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    fn answer(&mut self, answered: bool) {
        self.waiting = self.waiting.saturating_sub(1);
        if answered {
            self.since = (self.waiting > 0).then(Instant::now);
        }
    }
}

/// Sends calls over sockets: the view says where nodes are; nodes on the same machine are reached over their Unix
/// socket.
pub struct NetTransport {
    dialer: Dialer,
    manager: Endpoint,
    view: SharedView,
    /// See [`tessera_net::machine`].
    machine: String,
    silence: Arc<Mutex<Silence>>,
}

impl NetTransport {
    /// Calls through `dialer`; opens no connection yet.
    pub fn new(dialer: Dialer, manager: Endpoint, view: SharedView) -> Self {
        NetTransport { dialer, manager, view, machine: tessera_net::machine(), silence: Arc::default() }
    }

    fn endpoint(&self, peer: &Peer) -> Result<Endpoint, String> {
        match peer {
            Peer::Manager => Ok(self.manager.clone()),
            Peer::Address(address) => address.parse(),
            Peer::Connection(id) => Err(format!("a client does not call back on connection {id}")),
            Peer::Node(id) => {
                let view = self.view.read();
                let node = view.node(*id).ok_or_else(|| format!("node {id} is not in the map"))?;
                Ok(Endpoint::to_node(node, &self.machine))
            }
        }
    }
}

impl Transport for NetTransport {
    fn call(&self, call: Call, done: Done) {
        let token = call.token;
        match self.endpoint(&call.peer) {
            Ok(endpoint) => {
                let silence = (call.peer == Peer::Manager).then(|| self.silence.clone());
                silence.iter().for_each(|silence| silence.lock().ask());
                let callback = Box::new(move |result: Result<_, Error>| {
                    let answered = !result.as_ref().is_err_and(is_transport);
                    silence.iter().for_each(|silence| silence.lock().answer(answered));
                    done(Answer { token, result });
                });
                let timeout = Duration::from_millis(call.timeout_ms);
                self.dialer.call(&endpoint, call.kind, call.body, call.payload, timeout, callback);
            }
            Err(message) => done(Answer { token, result: Err(Error::new(Code::Unavailable, message)) }),
        }
    }

    fn manager_silence(&self) -> Duration {
        self.silence.lock().since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
