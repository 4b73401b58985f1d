//! How calls leave the process: over `tessera-net`, or into a test's in-memory cluster.

use crate::rpc_table::is_transport;
use crate::view::SharedView;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_net::{Dialer, Endpoint, Managers};
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

/// Sends calls over sockets: those to the manager go to the one that leads; the view says where nodes are, and nodes on the
/// same machine are reached over their Unix socket.
pub struct NetTransport {
    dialer: Dialer,
    managers: Managers,
    view: SharedView,
    /// See [`tessera_net::machine`].
    machine: String,
    silence: Arc<Mutex<Silence>>,
}

impl NetTransport {
    /// Calls through `dialer`; opens no connection yet.
    pub fn new(dialer: Dialer, managers: Managers, view: SharedView) -> Self {
        NetTransport { dialer, managers, view, machine: tessera_net::machine(), silence: Arc::default() }
    }

    /// Calls the manager that leads.
    fn call_manager(&self, call: Call, done: Done) {
        let (token, silence) = (call.token, self.silence.clone());
        silence.lock().ask();
        let callback = move |result: Result<_, Error>| {
            let answered = !result.as_ref().is_err_and(is_transport);
            silence.lock().answer(answered);
            done(Answer { token, result });
        };
        let timeout = Duration::from_millis(call.timeout_ms);
        self.managers.call(call.kind, call.body, call.payload, timeout, Box::new(callback));
    }

    fn node(&self, id: u64) -> Result<Endpoint, String> {
        let view = self.view.read();
        let node = view.node(id).ok_or_else(|| format!("node {id} is not in the map"))?;
        Ok(Endpoint::to_node(node, &self.machine))
    }
}

impl Transport for NetTransport {
    fn call(&self, call: Call, done: Done) {
        let endpoint = match &call.peer {
            Peer::Manager => return self.call_manager(call, done),
            Peer::Node(id) => self.node(*id),
            Peer::Address(address) => address.parse(),
            Peer::Connection(id) => Err(format!("a client does not call back on connection {id}")),
        };
        let token = call.token;
        match endpoint {
            Ok(endpoint) => {
                let callback = Box::new(move |result| done(Answer { token, result }));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;
    use prost::Message;
    use tessera_net::dialer::NoService;
    use tessera_net::{BufferPool, Connection, Limits, Server, Service};
    use tessera_wire::meta::GetStatus;
    use tessera_wire::{Frame, Hello, HelloReply, Kind, Role};

    /// A manager that never leads.
    struct Standby;

    impl Service for Standby {
        fn request(&self, connection: &Arc<Connection>, frame: Frame) {
            let answer = match frame.header.kind == Kind::Hello as u16 {
                true => {
                    connection.admit(Role::Client).map(|()| (HelloReply::default().encode_to_vec().into(), Vec::new()))
                }
                false => Err(Error::new(Code::NotLeader, "stands by")),
            };
            connection.reply(frame.header.kind, frame.header.request_id, answer);
        }
    }

    #[test]
    fn managers_that_do_not_lead_count_as_silent() {
        let listen = ["127.0.0.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()];
        let server = Server::start(&listen, Arc::new(Standby), BufferPool::new(0), Limits::default()).unwrap();
        let addresses: Vec<String> = server.endpoints().iter().map(ToString::to_string).collect();
        let dialer = Dialer::new(Hello::default(), Arc::new(NoService), BufferPool::new(0));
        let managers = Managers::new(dialer.clone(), addresses.join(",").parse().unwrap());
        let transport = NetTransport::new(dialer, managers, View::shared());
        let (sender, answers) = std::sync::mpsc::channel();
        let call = Call::new(Peer::Manager, 7, &GetStatus {}, Vec::new(), 300);
        transport.call(call, Box::new(move |answer| sender.send(answer).unwrap()));
        let answer = answers.recv().unwrap();
        assert_eq!((answer.token, answer.result.unwrap_err().code()), (7, Code::Unavailable));
        assert!(transport.manager_silence() > Duration::ZERO);
    }
}
