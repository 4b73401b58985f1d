//! Nodes with real sockets and directories, and a scripted manager.

mod common;

use common::*;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tessera_disk::{Disk, Identity, RealDisk};
use tessera_net::Endpoint;
use tessera_node::NodeServer;
use tessera_wire::consensus::{Consensus, JoinGroup, PeerKind};
use tessera_wire::data::*;
use tessera_wire::frame::{FLAG_REPLY, FrameHeader, HEADER_BYTES, encode_message};
use tessera_wire::meta::*;
use tessera_wire::{ChunkInfo, Code, Hello, PROTOCOL_VERSION, PgInfo, PgMember, Role};

const WAIT: Duration = Duration::from_secs(30);

fn whole(chunk_id: u64, fragment: u32, disk_id: u64) -> GetItem {
    GetItem { chunk_id, fragment, disk_id, whole: true, ..GetItem::default() }
}

fn get(items: Vec<GetItem>) -> GetFragments {
    GetFragments { items, hints: vec![] }
}

/// Two nodes: fragments are put, then read whole and in part over TCP and a Unix socket; one is rebuilt from the other
/// node, verified, deleted. A clean stop loses nothing.
#[test]
fn a_life_of_two_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two, three) = (dir.path().join("1"), dir.path().join("2"), dir.path().join("3"));
    let manager = Manager::start();
    let mut options = node(&manager, "a", &[&one, &two]);
    options.unix_socket = Some(dir.path().join("a.sock"));
    let a = NodeServer::start(options.clone()).unwrap();
    let b = started(&manager, "b", &[&three]);
    manager.wait("both nodes", |s| s.nodes.len() == 2 && s.heartbeats > 4);
    let (at_a, at_b) = (a.endpoints()[0].clone(), b.endpoints()[0].clone());
    let client = client();

    // Fragments 0, 1, 2 on the first disk of a, 3 on its second, 5 on b.
    let chunk = common::bytes(1, 300_000);
    let pieces = fragments(&chunk);
    let on_a: Vec<(u32, u64)> = vec![(0, 101), (1, 101), (2, 101), (3, 102)];
    let items = on_a.iter().map(|&(f, disk)| item(&chunk, 77, disk, f, &pieces[f as usize])).collect();
    let payload = on_a.iter().map(|&(f, _)| pieces[f as usize].clone().into()).collect::<Vec<_>>();
    let (reply, _) = client.call_wait(&at_a, &put_of(items), payload.clone(), WAIT).unwrap();
    assert_eq!(reply.results.len(), 4);
    assert!(reply.results.iter().all(|r| r.error.is_none() && r.incarnation == 1), "{reply:?}");
    let to_b = put_of(vec![item(&chunk, 77, 103, 5, &pieces[5])]);
    let (reply, _) = client.call_wait(&at_b, &to_b, vec![pieces[5].clone().into()], WAIT).unwrap();
    assert_eq!(reply.results[0].error, None);
    // Sent twice: takes effect once, with the same answer (P8).
    let (reply, _) = client.call_wait(&at_b, &to_b, vec![pieces[5].clone().into()], WAIT).unwrap();
    assert_eq!(reply.results[0].error, None);

    // Whole, in part, verified, with groups; and a fragment that is not there.
    for at in [at_a.clone(), Endpoint::Unix(dir.path().join("a.sock"))] {
        let part = GetItem { offset: 1_000, len_bytes: 20_000, want_groups: true, ..whole(77, 1, 101) };
        let part = GetItem { whole: false, ..part };
        let items = vec![whole(77, 0, 101), part, GetItem { verify: true, ..whole(77, 3, 102) }, whole(77, 4, 101)];
        let (reply, payload) = client.call_wait(&at, &get(items), vec![], WAIT).unwrap();
        let mut expected = pieces[0].clone();
        expected.extend_from_slice(&pieces[1][1_000..21_000]);
        expected.extend_from_slice(&pieces[3]);
        assert_eq!(payload, expected);
        assert_eq!(reply.results[1].groups, tessera_accel::hash::tree(&chunk).groups.concat());
        assert_eq!(reply.results[0].crc32c, tessera_accel::checksum::crc32c(&pieces[0]));
        assert_eq!(reply.results[3].error.as_ref().unwrap().code(), Code::NotFound);
    }

    // b rebuilds fragment 4 from a's four fragments.
    let member = |disk_id| PgMember { disk_id, ..PgMember::default() };
    let mut members: Vec<PgMember> = [101, 101, 101, 102, 999, 103].map(member).to_vec();
    members[4].incoming_disk_id = 103;
    members[4].put_to_incoming = true;
    let hash = tessera_accel::hash::chunk_hash(&chunk).0.to_vec();
    let info = ChunkInfo {
        chunk_id: 77,
        hash: hash.into(),
        len_bytes: chunk.len() as u64,
        class_id: 1,
        pg_id: 1,
        missing: vec![4],
    };
    let rebuild = RebuildTask {
        pg: Some(PgInfo { pg_id: 1, epoch: 2, members }),
        fragment: 4,
        disk_id: 103,
        class: Some(ec42()),
        chunks: vec![info],
        domain: 0,
        prove: false,
        hurry: false,
    };
    manager.with(|s| s.tasks.push((2, Task { task_id: 1, rebuild: Some(rebuild), ..Task::default() })));
    manager.wait("the rebuild", |s| s.results.iter().any(|r| r.task_id == 1 && r.finished));
    let done = manager.with(|s| s.results.iter().flat_map(|r| r.done.clone()).collect::<Vec<_>>());
    assert_eq!(done, vec![FragmentRef { chunk_id: 77, fragment: 4, epoch: 2, disk_id: 103 }]);
    let (_, payload) = client.call_wait(&at_b, &get(vec![whole(77, 4, 103)]), vec![], WAIT).unwrap();
    assert_eq!(payload, pieces[4]);

    // Inventory of b, from which fragment 5 is removed; a delete on a.
    let of = |fragment, disk_id| FragmentRef { chunk_id: 77, fragment, epoch: 0, disk_id };
    manager.with(|s| {
        s.remove = vec![of(5, 103)];
        let inventory = Some(InventoryTask { disk_id: 103 });
        s.tasks.push((2, Task { task_id: 2, inventory, ..Task::default() }));
        s.deletes.push((1, of(0, 101)));
    });
    manager.wait("the deletes", |s| s.deleted.contains(&of(5, 103)) && s.deleted.contains(&of(0, 101)));
    let held = manager.with(|s| s.inventories.iter().flat_map(|i| i.held.clone()).collect::<Vec<_>>());
    assert_eq!(held, vec![of(4, 103), of(5, 103)]);
    let (reply, _) = client.call_wait(&at_a, &get(vec![whole(77, 0, 101)]), vec![], WAIT).unwrap();
    assert_eq!(reply.results[0].error.as_ref().unwrap().code(), Code::NotFound);
    // P3: a late duplicate does not bring the fragment back.
    let late = put_of(vec![item(&chunk, 77, 101, 0, &pieces[0])]);
    let (reply, _) = client.call_wait(&at_a, &late, vec![pieces[0].clone().into()], WAIT).unwrap();
    assert_eq!(reply.results[0].error.as_ref().unwrap().code(), Code::NotFound);

    let (status, _) = client.call_wait(&at_a, &GetNodeStatus {}, vec![], WAIT).unwrap();
    assert_eq!(status.disks.len(), 2);
    assert_eq!(status.node.unwrap().name, "a");
    assert!(a.metrics().core.fragments_stored >= 4);

    // After a clean stop everything is there again.
    drop(a);
    let registrations = manager.with(|s| s.registrations);
    let a = NodeServer::start(node(&manager, "a", &[&one, &two])).unwrap();
    manager.wait("the node to come back", |s| s.registrations > registrations && s.nodes[0].incarnation == 2);
    let known = a.endpoints()[0].clone();
    let mut payload = bytes::Bytes::new();
    manager.wait("its disks to have names", |_| a.metrics().disks.iter().all(|d| d.1 != 0));
    if let Ok((_, bytes)) = client.call_wait(&known, &get(vec![whole(77, 2, 101), whole(77, 3, 102)]), vec![], WAIT) {
        payload = bytes;
    }
    assert_eq!(payload, [&pieces[2][..], &pieces[3][..]].concat());
}

/// P11: without answered heartbeats nothing is acknowledged once the lease has expired, but reads are served. The first
/// answered heartbeat restores the lease. A node that must register gets a new incarnation.
#[test]
fn lease_and_rejoining() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start();
    manager.with(|s| s.lease_ms = 300);
    let a = started(&manager, "a", &[&dir.path().join("1")]);
    let at = a.endpoints()[0].clone();
    let client = client();
    let chunk = common::bytes(2, 5_000);
    let put = |id: u64| {
        let put = put_of(vec![item(&chunk, id, 101, 0, &chunk)]);
        client.call_wait(&at, &put, vec![chunk.clone().into()], WAIT)
    };
    let (reply, _) = put(1).unwrap();
    assert_eq!(reply.results[0].error, None);
    manager.with(|s| s.silent = true);
    let refused = loop {
        match put(2) {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message.contains("lease"), "{refused}");
    let (_, payload) = client.call_wait(&at, &get(vec![whole(1, 0, 101)]), vec![], WAIT).unwrap();
    assert_eq!(payload, chunk);
    manager.with(|s| {
        s.silent = false;
        s.lease_ms = 60_000;
    });
    manager.wait("heartbeats again", {
        let mut first = None;
        move |s| s.heartbeats > *first.get_or_insert(s.heartbeats)
    });
    manager.wait("the lease", |_| a.metrics().has_lease);
    assert_eq!(put(2).unwrap().0.results[0].error, None);

    manager.with(|s| s.must_register = Some(1));
    manager.wait("the new incarnation", |s| s.registrations == 2);
    manager.wait("the lease", |_| a.metrics().has_lease);
    assert_eq!(put(3).unwrap().0.results[0].incarnation, 2);
    assert_eq!(a.metrics().core.rejoins, 1);
}

/// P6: a client that sends puts and never reads the answers fills its connection, and harms neither the disk nor others.
#[test]
fn answers_that_nobody_reads_condemn_no_disk() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start();
    let mut options = node(&manager, "a", &[&dir.path().join("1")]);
    // Long enough for a disk that waits for a busy machine.
    options.config.disk_stuck_ms = 4_000;
    let a = NodeServer::start(options).unwrap();
    manager.wait("heartbeats", |s| s.heartbeats > 1);
    manager.wait("the lease", |_| a.metrics().has_lease);
    let (at, client) = (a.endpoints()[0].clone(), client());
    let put = |fragment: &[u8], copies: usize| put_of(vec![item(fragment, 1, 101, 0, fragment); copies]);
    let (reply, _) = client.call_wait(&at, &put(b"first", 1), vec![b"first"[..].into()], WAIT).unwrap();
    assert_eq!(reply.results[0].error, None);

    // Each answer has a refusal for each of its fragments: some 400 KB.
    let (other, copies) = (b"other", 4_000);
    let payload = bytes::Bytes::from(other.repeat(copies));
    let mut unread = greeted(&at);
    let message = put(other, copies);
    for request_id in 2..62 {
        let kind = tessera_wire::Kind::PutFragments as u16;
        let mut frame = encode_message(kind, 0, request_id, &message, payload.len() as u32);
        frame.extend_from_slice(&payload);
        unread.write_all(&frame).unwrap();
    }
    // The disk would be given up while its thread waits for the reader; puts of others would wait, too.
    let until = std::time::Instant::now() + Duration::from_secs(8);
    let mut puts = 0;
    while std::time::Instant::now() < until {
        let (reply, _) = client.call_wait(&at, &put(b"first", 1), vec![b"first"[..].into()], WAIT).unwrap();
        assert_eq!(reply.results[0].error, None);
        puts += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(puts > 10, "{puts} puts in 8 s");
    assert_eq!(manager.with(|s| s.failed_disks.clone()), Vec::<u64>::new());
    drop(unread);
}

/// P9: the directory of one of two disks is moved away. That disk acknowledges nothing from then on, and the manager hears it
/// even without a write. The other disk goes on, and what the lost one holds can be read.
#[test]
fn p9_a_disk_whose_directory_is_gone_has_failed_and_the_other_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start();
    let (first, second) = (dir.path().join("1"), dir.path().join("2"));
    let a = started(&manager, "a", &[&first, &second]);
    manager.wait("the lease", |_| a.metrics().has_lease);
    let (at, client) = (a.endpoints()[0].clone(), client());
    let put = |disk_id, chunk_id| {
        let message = put_of(vec![item(b"fragment", chunk_id, disk_id, 0, b"fragment")]);
        client.call_wait(&at, &message, vec![b"fragment"[..].into()], WAIT).unwrap().0.results[0].clone()
    };
    assert_eq!((put(101, 1).error, put(102, 2).error), (None, None));
    std::fs::rename(&second, dir.path().join("away")).unwrap();
    let refused = put(102, 3).error.expect("refused by the first put");
    assert!(refused.code() == Code::Io && refused.message.contains(second.to_str().unwrap()), "{refused:?}");
    manager.wait("the failure", |s| s.failed_disks == [102]);
    assert_eq!(put(101, 4).error, None);
    let (_, held) = client.call_wait(&at, &get(vec![whole(2, 0, 102)]), vec![], WAIT).unwrap();
    assert_eq!(&held[..], b"fragment");

    // Another one is deleted, and nobody writes to it.
    std::fs::remove_dir_all(&first).unwrap();
    manager.wait("the other failure", |s| s.failed_disks == [101, 102]);
    assert_eq!(put(101, 5).error.expect("refused").code(), Code::Io);
}

/// A connection that has greeted as a client.
fn greeted(at: &Endpoint) -> std::net::TcpStream {
    let mut stream = std::net::TcpStream::connect(at.to_string()).unwrap();
    let hello = Hello { protocol_version: PROTOCOL_VERSION, role: Role::Client as i32, ..Hello::default() };
    stream.write_all(&encode_message(tessera_wire::Kind::Hello as u16, 0, 1, &hello, 0)).unwrap();
    let mut raw = [0; HEADER_BYTES];
    stream.read_exact(&mut raw).unwrap();
    let header = FrameHeader::decode(&raw).unwrap();
    stream.read_exact(&mut vec![0; header.body_len as usize]).unwrap();
    assert_eq!(header.flags, FLAG_REPLY);
    stream
}

/// The node's voter tells who it is, keeps its id over a restart, and has another one after its files are damaged.
#[test]
fn the_voter_keeps_its_id_unless_it_has_forgotten_something() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start();
    let ask = |node: &NodeServer| {
        let asked = peer(Role::Manager).call_wait(&node.endpoints()[0], &JoinGroup::default(), vec![], WAIT);
        asked.unwrap().0
    };
    let a = started(&manager, "a", &[&dir.path().join("1")]);
    let said = ask(&a);
    let member = said.receiver.unwrap();
    assert_eq!((&said.cluster_id[..], &member.name[..], member.kind()), (&CLUSTER[..], "a", PeerKind::Voter));
    assert_eq!(format!("{}", a.endpoints()[0]), member.address);
    drop(a);
    manager.with(|s| s.silent = true);
    let start = || NodeServer::start(node(&manager, "a", &[&dir.path().join("1")])).unwrap();
    let a = start();
    assert_eq!(ask(&a).receiver.unwrap().id, member.id, "it starts without a manager, too");
    drop(a);
    let voter = dir.path().join("1").join(tessera_node::voter::VOTER_DIR);
    let file = std::fs::read_dir(&voter).unwrap().map(|entry| entry.unwrap().path()).next().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 1;
    bytes.extend([7; 5_000]);
    std::fs::write(&file, bytes).unwrap();
    assert_ne!(ask(&start()).receiver.unwrap().id, member.id);
}

/// P14: only peers may reach the voter, and only a client may put fragments. The greeting decides.
#[test]
fn requests_of_another_role_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start();
    let a = started(&manager, "a", &[&dir.path().join("1")]);
    let at = a.endpoints()[0].clone();
    let chunk = common::bytes(1, 1_000);
    let pieces = fragments(&chunk);
    let piece = || vec![pieces[0].clone().into()];
    let put = put_of(vec![item(&chunk, 1, 101, 0, &pieces[0])]);
    for role in [Role::Unknown, Role::Client] {
        let refused = peer(role).call_wait(&at, &JoinGroup::default(), vec![], WAIT).unwrap_err();
        assert_eq!(refused.code(), Code::Permission, "{role:?}");
        assert_eq!(
            peer(role).call_wait(&at, &Consensus::default(), vec![], WAIT).unwrap_err().code(),
            Code::Permission
        );
    }
    for role in [Role::Unknown, Role::Manager, Role::Node] {
        assert_eq!(peer(role).call_wait(&at, &put, piece(), WAIT).unwrap_err().code(), Code::Permission, "{role:?}");
    }
    let held = peer(Role::Client).call_wait(&at, &get(vec![whole(1, 0, 101)]), vec![], WAIT).unwrap().0;
    assert_eq!(held.results[0].error.as_ref().unwrap().code(), Code::NotFound);
    assert_eq!(peer(Role::Client).call_wait(&at, &put, piece(), WAIT).unwrap().0.results[0].error, None);
}

/// P14: each directory that this node must not serve is refused with one line and stays unchanged.
#[test]
fn disks_that_are_not_ours() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start();
    let path = |name: &str| dir.path().join(name);
    let refused = |dirs: &[&std::path::Path]| match NodeServer::start(node(&manager, "x", dirs)) {
        Ok(_) => panic!("started"),
        Err(error) => error.to_string(),
    };
    let make = |name: &str, cluster_id| {
        let disk = RealDisk::create(path(name)).unwrap();
        Identity { cluster_id, disk_uuid: [name.len() as u8; 16], created_ms: 1 }.create(&disk).unwrap();
        disk
    };
    make("own", CLUSTER);
    make("other", [9; 16]);
    let line = refused(&[&path("own"), &path("other")]);
    assert!(line.contains("other") && line.contains("belongs to cluster 0909"), "{line}");

    let a = started(&manager, "a", &[&path("own")]);
    let line = refused(&[&path("own")]);
    assert!(line.contains("already serve"), "{line}");
    drop(a);

    std::fs::create_dir_all(path("home")).unwrap();
    std::fs::write(path("home").join("letter.txt"), "dear").unwrap();
    let line = refused(&[&path("home")]);
    assert!(line.contains("letter.txt"), "{line}");
    assert_eq!(
        std::fs::read_dir(path("home")).unwrap().filter(|e| e.as_ref().unwrap().file_name() != "lock").count(),
        1
    );

    let newer = path("own").join("tessera-disk");
    let mut raw = std::fs::read(&newer).unwrap();
    raw[8] = 2;
    let crc = tessera_accel::checksum::crc32c(&raw[..60]);
    raw[60..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&newer, raw).unwrap();
    let line = refused(&[&path("own")]);
    assert!(line.contains("format version 2"), "{line}");

    // A disk of another cluster than the manager's: registration fails with an error that says so.
    let other = NodeServer::start(node(&manager, "x", &[&path("other")])).unwrap();
    let error = other.fatal().recv_timeout(WAIT).unwrap();
    assert_eq!(error.code(), Code::WrongCluster);

    let mut options = node(&manager, "x", &[&path("new")]);
    options.listen = "0.0.0.0:0".into();
    assert!(NodeServer::start(options).err().unwrap().to_string().contains("--advertise"));
    let mut options = node(&manager, "x", &[&path("newer")]);
    options.managers = Endpoint::Tcp("127.0.0.1:1".into()).into();
    options.join_timeout = Duration::ZERO;
    assert!(NodeServer::start(options).err().unwrap().to_string().contains("does not answer"));
    let mut options = node(&manager, "x", &[]);
    options.disks = Vec::<Arc<dyn Disk>>::new();
    assert!(NodeServer::start(options).err().unwrap().to_string().contains("--disk"));
}

/// P14: an invalid request is refused, and the connection continues.
#[test]
fn bad_requests_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start();
    let a = started(&manager, "a", &[&dir.path().join("1")]);
    let at = a.endpoints()[0].clone();
    let client = client();
    let chunk = common::bytes(4, 1_000);
    let mut rotten = item(&chunk, 1, 101, 0, &chunk);
    rotten.crc32c ^= 1;
    let error = client.call_wait(&at, &put_of(vec![rotten]), vec![chunk.clone().into()], WAIT).unwrap_err();
    assert_eq!(error.code(), Code::Corrupt);
    let error = client.call_wait(&at, &put_of(vec![]), vec![], WAIT).unwrap_err();
    assert_eq!(error.code(), Code::Invalid);
    let elsewhere = put_of(vec![item(&chunk, 1, 999, 0, &chunk), item(&chunk, 2, 101, 0, &chunk)]);
    let (reply, _) = client.call_wait(&at, &elsewhere, vec![chunk.clone().into(), chunk.clone().into()], WAIT).unwrap();
    assert_eq!(reply.results[0].error.as_ref().unwrap().code(), Code::NotFound);
    assert_eq!(reply.results[1].error, None, "a bad neighbour does not matter");
    let error = client.call_wait(&at, &GetStatus {}, vec![], WAIT).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    let past = GetItem { whole: false, offset: 990, len_bytes: 11, ..whole(2, 0, 101) };
    let (reply, payload) = client.call_wait(&at, &get(vec![past]), vec![], WAIT).unwrap();
    assert_eq!(reply.results[0].error.as_ref().unwrap().code(), Code::Invalid);
    assert!(payload.is_empty());
    assert_eq!(a.stores()[0].stats().fragments, 1);
}

/// It joins, registers and sends its heartbeats wherever a manager leads, and asks in vain where none is.
#[test]
fn a_node_follows_the_leading_manager() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Manager::start();
    let second = first.start_beside();
    second.stand_by(&first);
    let mut options = node(&first, "a", &[&dir.path().join("1")]);
    let list = format!("127.0.0.1:1,{},{}", second.endpoint(), first.endpoint());
    options.managers = list.parse().unwrap();
    let _node = NodeServer::start(options).unwrap();
    let beats = || first.with(|s| s.heartbeats);
    let more = |what: &str, after: u64| second.wait(what, |s| s.heartbeats > after + 3);
    more("heartbeats to the leader", 0);
    first.stand_by(&second);
    more("heartbeats to the new leader", beats());
    second.stand_by(&first);
    more("heartbeats to the old one", beats());
    assert_eq!(first.with(|s| s.registrations), 1, "it registered once");
    let at = beats();
    first.stand_by(&second);
    first.server.stop();
    more("heartbeats without the old one", at);
}
