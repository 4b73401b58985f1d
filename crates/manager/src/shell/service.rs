//! What connections bring: greetings are answered at once, all else goes to the core's thread.

use super::{Greeted, In, RELEASE, Shared};
use crate::core::Event;
use crate::inbox::connection_of;
use bytes::Bytes;
use std::sync::Arc;
use tessera_net::{Connection, Service};
use tessera_wire::frame::decode_message;
use tessera_wire::{Code, Error, Frame, Hello, HelloReply, Kind, PROTOCOL_VERSION, Role, hex};

/// What an answer that may list thousands of entries takes, roughly.
const LONG_ANSWER_BYTES: usize = 1 << 20;

impl Shared {
    pub(super) fn connection(&self, id: u64) -> Option<Arc<Connection>> {
        self.greeted.lock().get(&id).map(|greeted| greeted.connection.clone())
    }

    pub(super) fn push(&self, event: Event) {
        self.inbox.push(connection_of(&event), In::Event(event));
    }

    fn greet(&self, connection: &Arc<Connection>, hello: &Hello) -> Result<Bytes, Error> {
        let role = Role::try_from(hello.role).unwrap_or(Role::Unknown);
        let Some(cluster_id) = self.cluster_id.get() else {
            return Err(Error::new(Code::Unavailable, "this manager is opening its database; ask again"));
        };
        hello.check(cluster_id).map_err(|error| self.turn_away(hello, cluster_id, role, error))?;
        connection.admit(role)?;
        let greeted = Greeted { connection: connection.clone(), role, client_id: hello.client_id };
        self.greeted.lock().insert(connection.id(), greeted);
        let reply = HelloReply {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: cluster_id.to_vec(),
            release: RELEASE.to_string(),
            role: Role::Manager as i32,
            members: self.members.lock().clone(),
        };
        Ok(prost::Message::encode_to_vec(&reply).into())
    }

    /// Rejects a node of another cluster; the error and the log explain what that may mean.
    fn turn_away(&self, hello: &Hello, own: &[u8; 16], role: Role, error: Error) -> Error {
        if role != Role::Node || error.code() != Code::WrongCluster {
            return error;
        }
        self.push(Event::RejectedNode { cluster_id: hello.cluster_id.clone(), host: hello.host.clone() });
        Error::new(
            Code::WrongCluster,
            format!(
                "these disks belong to cluster {}, the manager serves cluster {}; check --manager, and if the manager lost its \
                 directory, start it with --join",
                hex(&hello.cluster_id),
                hex(own)
            ),
        )
    }

    fn accept(&self, connection: &Arc<Connection>, frame: &Frame) -> Result<Option<Bytes>, Error> {
        let header = &frame.header;
        let Some(kind) = Kind::from_number(header.kind) else {
            let text = format!("no message has number {:#06x} in this release", header.kind);
            return Err(Error::new(Code::Unsupported, text));
        };
        if kind == Kind::Hello {
            let hello = decode_message::<Hello>(header.kind, &frame.body)
                .map_err(|error| Error::new(Code::Invalid, error.to_string()))?;
            return self.greet(connection, &hello).map(Some);
        }
        let (role, client_id) = match self.greeted.lock().get(&connection.id()) {
            Some(greeted) => (greeted.role, greeted.client_id),
            None => return Err(Error::new(Code::Invalid, "the first message on a connection must be Hello")),
        };
        if kind.is_for_peer() {
            kind.check_role(role)?;
            let (connection, request_id) = (connection.id(), header.request_id);
            let (body, payload) = (frame.body.clone(), frame.payload.clone());
            self.inbox.push(None, In::Peer { connection, request_id, kind, body, payload });
            return Ok(None);
        }
        self.push(Event::Request {
            connection: connection.id(),
            role,
            client_id,
            request_id: header.request_id,
            kind,
            body: frame.body.clone(),
        });
        Ok(None)
    }
}

impl Service for Shared {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        match self.accept(connection, &frame) {
            Ok(None) => {}
            Ok(Some(body)) => connection.reply(frame.header.kind, frame.header.request_id, Ok((body, Vec::new()))),
            Err(error) => connection.reply(frame.header.kind, frame.header.request_id, Err(error)),
        }
    }

    fn cost_bytes(&self, frame: &Frame) -> usize {
        let answer = match Kind::from_number(frame.header.kind) {
            Some(Kind::List | Kind::ListExtents | Kind::ListVersions | Kind::GetMap | Kind::GetStatus) => {
                LONG_ANSWER_BYTES
            }
            // A client may wait for many locks, which must not keep it from cancelling one.
            Some(Kind::SetLock) => 0,
            _ => 1 << 10,
        };
        answer + frame.body.len() + frame.payload.len()
    }

    fn closed(&self, connection: &Arc<Connection>) {
        let Some(gone) = self.greeted.lock().remove(&connection.id()) else { return };
        let client_id = if gone.role == Role::Client { gone.client_id } else { 0 };
        let (connection, end) = (connection.id(), connection.end());
        self.inbox.push(Some(connection), In::Closed { connection, end, client_id });
    }
}
