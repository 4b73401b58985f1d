//! The beginning of a run: the manager, a node that only beats, the directories, and the processes of mounts.

use super::*;
use crate::mount_host::store::REDUNDANCY;
use bytes::Bytes;
use prost::Message;
use tessera_manager::core::Event as ManagerEvent;
use tessera_wire::meta::{Heartbeat, MakeDir, RegisterNode, SetXattr};
use tessera_wire::{DiskInfo, Error, NodeInfo, Request, Role};

/// Connection of the world's own requests.
const WORLD: u64 = 1;
/// Connection of the node.
const NODE: u64 = 2;

/// The node: it has a disk, beats, and is never asked for bytes.
#[derive(Default)]
pub struct Node {
    node_id: u64,
    incarnation: u64,
    disk_id: u64,
    beats: u64,
    /// Answers to requests of the node and of the world.
    answers: BTreeMap<u64, Result<Bytes, Error>>,
}

impl<H: Host> MountWorld<H> {
    /// Starts the manager, registers the node and makes the directories.
    pub(super) fn set_up(&mut self) {
        self.manager.found();
        self.lead();
        self.push(self.now_ns, Event::ManagerTick { incarnation: self.manager.incarnation });
        self.register();
        self.push(self.now_ns + 200 * MS, Event::NodeBeat);
        self.ask_world(&SetXattr {
            op_id: 1,
            ino: history::ROOT,
            name: "user.tessera.redundancy".into(),
            value: REDUNDANCY.into(),
            ..SetXattr::default()
        });
        for (number, rule) in (0u64..).zip(RULES) {
            let op_id = 10 + 10 * number;
            let name = format!("d{number}").into_bytes();
            let made =
                self.ask_world(&MakeDir { op_id, parent: history::ROOT, name, mode: 0o755, ..MakeDir::default() });
            let ino = made.attr.map_or(0, |attr| attr.ino);
            let durability = if rule.optimistic { "optimistic" } else { "pessimistic" };
            for (step, name, value) in [(1, "write-mode", rule.mode), (2, "durability", durability)] {
                let name = format!("user.tessera.{name}");
                let value = value.as_bytes().to_vec();
                self.ask_world(&SetXattr { op_id: op_id + step, ino, name, value, ..SetXattr::default() });
            }
            self.model.borrow_mut().rule(ino, rule);
            let is_wanted = match self.plan.theme {
                Theme::Spool => rule.mode == "complete-local",
                Theme::Creates => rule.mode == "sliding-window",
                Theme::Mixed | Theme::Locks => true,
            };
            if is_wanted {
                self.shared.directories.borrow_mut().push(ino);
            }
        }
        let gone = ManagerEvent::ConnectionClosed { connection: WORLD, end: End::ByPeer, client_gone: WORLD };
        self.manager.event(self.now_ns, gone);
        self.pump_manager();
    }

    /// The only manager leads at its first tick.
    pub(super) fn lead(&mut self) {
        self.manager.tick(self.now_ns);
        self.pump_manager();
        assert!(self.manager.leads(), "a manager alone leads");
    }

    fn register(&mut self) {
        let disk = DiskInfo {
            uuid: vec![7; 16],
            capacity_bytes: 1 << 40,
            free_bytes: 1 << 40,
            path: "/disk".into(),
            ..DiskInfo::default()
        };
        let node =
            NodeInfo { name: "n0".into(), host: "n0".into(), address: "127.0.0.1:1000".into(), ..NodeInfo::default() };
        let (op_id, receipt_key) = (self.env.number(), vec![7; 32]);
        let request = RegisterNode { op_id, node: Some(node), disks: vec![disk], receipt_key, check_only: false };
        let reply = self.ask_as::<RegisterNode>(NODE, Role::Node, &request);
        let Some(Ok(reply)) = reply else { return };
        (self.node.node_id, self.node.incarnation) = (reply.node_id, reply.incarnation);
        self.node.disk_id = reply.disk_ids.first().copied().unwrap_or(0);
        self.beat_once();
    }

    /// A heartbeat, and the next one.
    pub(super) fn beat(&mut self) {
        if self.manager.is_running() {
            self.beat_once();
        }
        self.push(self.now_ns + 1_000 * MS, Event::NodeBeat);
    }

    fn beat_once(&mut self) {
        self.node.beats += 1;
        let disk = DiskInfo {
            disk_id: self.node.disk_id,
            uuid: vec![7; 16],
            capacity_bytes: 1 << 40,
            free_bytes: 1 << 40,
            ..DiskInfo::default()
        };
        let beat = Heartbeat {
            node_id: self.node.node_id,
            incarnation: self.node.incarnation,
            number: self.node.beats,
            disks: vec![disk],
            ..Heartbeat::default()
        };
        if let Some(Ok(reply)) = self.ask_as::<Heartbeat>(NODE, Role::Node, &beat)
            && reply.must_register
        {
            self.register();
        }
    }

    /// An answer to a request that is no mount's.
    pub(super) fn node_answered(&mut self, ticket: u64, result: Result<Bytes, Error>) {
        self.node.answers.insert(ticket, result);
    }

    /// A request of the world, which must succeed at once.
    fn ask_world<R: Request>(&mut self, request: &R) -> R::Reply {
        match self.ask_as::<R>(WORLD, Role::Client, request) {
            Some(Ok(reply)) => reply,
            other => panic!("the world's {} was not carried out: {:?}", R::KIND.name(), other.map(|r| r.err())),
        }
    }

    /// Asks the manager; none: it does not answer at once.
    pub(super) fn ask_as<R: Request>(
        &mut self,
        connection: u64,
        role: Role,
        request: &R,
    ) -> Option<Result<R::Reply, Error>> {
        let ticket = self.env.number();
        let body = request.encode_to_vec().into();
        let event =
            ManagerEvent::Request { connection, role, client_id: connection, request_id: ticket, kind: R::KIND, body };
        self.manager.event(self.now_ns, event);
        self.pump_manager();
        let answer = self.node.answers.remove(&ticket)?;
        Some(answer.map(|body| R::Reply::decode(body).expect("the manager's reply can be decoded")))
    }

    // --- mounts -------------------------------------------------------------------------------------------------

    /// Starts a process of a mount on its spool, and a program that uses it.
    pub(super) fn start_mount(&mut self, index: usize) {
        let (link_seed, program_seed) = (self.rng.any(), self.rng.any());
        let slot = &mut self.mounts[index];
        if slot.link.is_some() {
            return;
        }
        slot.incarnation += 1;
        self.fail_at_start(index);
        let slot = &mut self.mounts[index];
        match slot.spool_fails {
            true => self.model.borrow_mut().spool_unread(index),
            false => self.model.borrow_mut().spool_read(index),
        }
        let owner = Owner { index, incarnation: slot.incarnation };
        let link = Link::new(self.env.clone(), owner, link_seed, self.fresh_op_ids);
        slot.link = Some(link.clone());
        slot.line = Line::Closed(0);
        let setup = Setup {
            env: self.env.clone(),
            owner,
            store: Store::new(link.clone()),
            link,
            disk: slot.disk.clone(),
            spool_bytes: self.plan.spool_bytes,
            cluster_id: b"simulated world!".to_vec(),
        };
        let started = slot.started.clone();
        let (env, model, history, shared) =
            (self.env.clone(), self.model.clone(), self.history.clone(), self.shared.clone());
        self.env.spawn(owner, async move {
            let host = H::start(setup).await;
            *started.borrow_mut() = Some(host.clone());
            let program = |rng: Rng| {
                let (host, env, model) = (host.clone(), env.clone(), model.clone());
                program::Program::new(index, host, env, model, history.clone(), shared.clone(), rng)
            };
            env.spawn(owner, program::reader::Reader::new(program(Rng::new(!program_seed))).run());
            program(Rng::new(program_seed)).run().await;
        });
    }
}
