//! How calls leave the process: over `tessera-net`, or into a test's in-memory cluster.

use crate::view::SharedView;
use std::time::Duration;
use tessera_net::{Dialer, Endpoint};
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error};

/// Takes the answer of a call. Must not block: it may run on a connection's reading thread.
pub type Done = Box<dyn FnOnce(Answer) + Send>;

/// Carries calls.
pub trait Transport: Send + Sync + 'static {
    /// Sends `call`; `done` is called exactly once, from any thread, this one included.
    fn call(&self, call: Call, done: Done);
}

/// Sends calls over sockets: the view says where nodes are; nodes on the same machine are reached over their Unix
/// socket.
pub struct NetTransport {
    dialer: Dialer,
    manager: Endpoint,
    view: SharedView,
    /// See [`tessera_net::machine`].
    machine: String,
}

impl NetTransport {
    /// Calls through `dialer`; opens no connection yet.
    pub fn new(dialer: Dialer, manager: Endpoint, view: SharedView) -> Self {
        NetTransport { dialer, manager, view, machine: tessera_net::machine() }
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
                let callback = Box::new(move |result| done(Answer { token, result }));
                let timeout = Duration::from_millis(call.timeout_ms);
                self.dialer.call(&endpoint, call.kind, call.body, call.payload, timeout, callback);
            }
            Err(message) => done(Answer { token, result: Err(Error::new(Code::Unavailable, message)) }),
        }
    }
}
