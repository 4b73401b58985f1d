//! Handles requests on the connection's thread: checks first, then the core, the index or the log.

use super::shared::Shared;
use super::voter::In;
use crate::check::{self, NodeRequest};
use crate::core::Event;

use crate::read::{self, GetAnswer, PayloadPart};
use bytes::Bytes;
use parking_lot::RwLock;
use prost::Message;
use std::collections::HashMap;

use std::sync::{Arc, OnceLock};
use tessera_disk::DiskFile;
use tessera_net::{Connection, FileRange, Part, Service};
use tessera_wire::data::GetFragments;
use tessera_wire::frame::FrameHeader;
use tessera_wire::{Code, Error, Frame, Hello, HelloReply, Kind, PROTOCOL_VERSION, Role};

/// Pieces of at least this many bytes go from page cache to socket without being copied.
const SENDFILE_MIN_BYTES: u64 = 16 << 10;

/// Serves connections. It exists from the moment the node listens; it serves requests once the disks are open.
#[derive(Default)]
pub(super) struct NodeService {
    node: OnceLock<Arc<Shared>>,
    /// Connections whose greeting was accepted, by id.
    greeted: RwLock<HashMap<u64, ConnectionPeer>>,
}

/// A peer as described in its greeting.
#[derive(Debug, Clone, Copy)]
struct ConnectionPeer {
    role: Role,
    /// The peer is on another host, so its bytes cross the network.
    far: bool,
}

impl NodeService {
    /// Starts serving requests.
    pub(super) fn open(&self, node: Arc<Shared>) {
        let _ = self.node.set(node);
    }

    fn greet(&self, node: &Shared, connection: &Connection, body: &[u8]) -> Result<Bytes, Error> {
        let hello: Hello = check::message(Kind::Hello as u16, body)?;
        hello.check(&node.cluster_id)?;
        let role = Role::try_from(hello.role).unwrap_or(Role::Unknown);
        connection.admit(role)?;
        self.greeted.write().insert(connection.id(), ConnectionPeer { role, far: hello.host != node.options.host });
        let reply = HelloReply {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: node.cluster_id.to_vec(),
            release: env!("CARGO_PKG_VERSION").into(),
            role: Role::Node as i32,
            members: Vec::new(),
        };
        Ok(reply.encode_to_vec().into())
    }
}

impl Service for NodeService {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        let (kind, request_id) = (frame.header.kind, frame.header.request_id);
        let Some(node) = self.node.get() else {
            let error = Error::new(Code::Unavailable, "this node is opening its disks; ask again");
            return connection.reply(kind, request_id, Err(error));
        };
        if kind == Kind::Hello as u16 {
            let result = self.greet(node, connection, &frame.body);
            return connection.reply(kind, request_id, result.map(|body| (body, Vec::new())));
        }
        let greeted = self.greeted.read().get(&connection.id()).copied();
        let allowed = match greeted {
            None => Err(Error::new(Code::Invalid, "the first message on a connection is Hello")),
            Some(it) => Kind::from_number(kind).map_or(Ok(()), |kind| kind.check_role(it.role)),
        };
        if let Err(error) = allowed {
            return connection.reply(kind, request_id, Err(error));
        }
        let far = greeted.is_some_and(|it| it.far);
        if let Some(of_group) = Kind::from_number(kind).filter(|kind| kind.is_for_peer()) {
            node.traffic.lock().log_received_bytes += frame.payload.len() as u64;
            let (connection, body, payload) = (connection.clone(), frame.body, frame.payload);
            return node.voter.send(In::Request { connection, request_id, kind: of_group, body, payload });
        }
        let payload_bytes = frame.payload.len() as u64;
        let request = check::decode(&node.options.config, kind, &frame.body, frame.payload, &frame.sums);
        {
            let mut traffic = node.traffic.lock();
            traffic.received_bytes += payload_bytes;
            traffic.far_received_bytes += if far { payload_bytes } else { 0 };
            traffic.puts += u64::from(matches!(request, Ok(NodeRequest::Put(_))));
        }
        match request {
            Ok(NodeRequest::Put(put)) => {
                let request = node.remember(connection, kind, request_id);
                node.drive([Event::Put { request, put }]);
            }
            Ok(NodeRequest::Status) => {
                let request = node.remember(connection, kind, request_id);
                node.drive([Event::Status { request }]);
            }
            Ok(NodeRequest::Get(get)) => node.get(connection, request_id, &get, far),
            Err(error) => connection.reply(kind, request_id, Err(error)),
        }
    }

    fn pieces(&self, header: &FrameHeader, body: &[u8]) -> Vec<u32> {
        check::pieces(header.kind, body)
    }

    fn closed(&self, connection: &Arc<Connection>) {
        self.greeted.write().remove(&connection.id());
    }
}

impl Shared {
    fn get(self: &Arc<Self>, connection: &Connection, request_id: u64, get: &GetFragments, far: bool) {
        let served = read::serve(get, SENDFILE_MIN_BYTES, &|disk_id| self.store(disk_id));
        let GetAnswer { reply, payload, bad } = served;
        let payload: Vec<Part> = payload.into_iter().map(part).collect();
        let sent_bytes: u64 = payload.iter().map(|p| p.len_bytes() as u64).sum();
        {
            let mut traffic = self.traffic.lock();
            traffic.gets += 1;
            traffic.sent_bytes += sent_bytes;
            traffic.far_sent_bytes += if far { sent_bytes } else { 0 };
        }
        connection.reply(Kind::GetFragments as u16, request_id, Ok((reply.encode_to_vec().into(), payload)));
        if !bad.is_empty() {
            self.drive(bad.into_iter().map(Event::FoundBad));
        }
    }
}

fn part(piece: PayloadPart) -> Part {
    match piece {
        PayloadPart::Bytes(bytes) => Part::Bytes(bytes),
        PayloadPart::File { file, offset, len_bytes } => {
            Part::File(FileRange { file: Arc::new(SegmentFile(file)), offset, len: len_bytes })
        }
    }
}

/// A segment's file for the socket. Created only for files that have a descriptor.
struct SegmentFile(Arc<dyn DiskFile>);

impl std::os::fd::AsFd for SegmentFile {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        // `read::piece` checked this, and a file keeps its descriptor.
        self.0.as_fd().expect("a file that goes by sendfile has a descriptor")
    }
}
