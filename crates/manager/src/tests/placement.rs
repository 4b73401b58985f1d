//! Placement hints: new chunks go to groups that begin where the hint says, and known chunks are shared only there. A hint
//! that cannot be followed is ignored and counted.

use crate::rig::*;
use tessera_wire::meta::*;

/// Opens a writer on host `host` for a new file.
fn open(rig: &mut Rig, name: &str, host: &str, placement: &str) -> u64 {
    let op_id = rig.op();
    let hints = vec![tessera_wire::Hint { name: "placement".into(), value: placement.into() }];
    let host = host.to_string();
    let request = OpenWrite { op_id, parent: 1, name: name.into(), hints, host, ..Default::default() };
    rig.ask(&request).unwrap().session_id
}

fn ask(rig: &mut Rig, session_id: u64, redundancy: &str, chunks: &[ChunkName]) -> AllocateChunksReply {
    let op_id = rig.op();
    let redundancy = redundancy.to_string();
    rig.ask(&AllocateChunks { op_id, session_id, redundancy, chunks: chunks.to_vec(), ..Default::default() }).unwrap()
}

/// Host of the first member of each answer's group: in the rig, node n has disk n on host h{n}.
fn hinted_hosts(reply: &AllocateChunksReply, plain: usize) -> Vec<Vec<String>> {
    let map = reply.map.as_ref().unwrap();
    let group = |pg_id| map.pgs.iter().find(|pg| pg.pg_id == pg_id).unwrap();
    let hosts = |pg_id| group(pg_id).members.iter().take(plain).map(|m| format!("h{}", m.disk_id)).collect();
    reply.answers.iter().map(|answer| hosts(answer.pg_id)).collect()
}

fn named(c: u8, region: u64) -> ChunkName {
    ChunkName { region, ..chunk(c) }
}

fn not_met(rig: &mut Rig) -> u64 {
    let counters = rig.ask(&GetStatus {}).unwrap().counters;
    counters.iter().find(|c| c.name == "placements_not_met").unwrap().value
}

#[test]
fn local_chunks_are_where_they_are_written() {
    let mut rig = Rig::new(8);
    for (redundancy, plain) in [("none", 1), ("replica:3", 3), ("ec:4+2", 4), ("copy+ec:4+2", 1)] {
        for host in 1..=8u8 {
            let host_name = format!("h{host}");
            let session = open(&mut rig, &format!("{redundancy} {host}"), &host_name, "local");
            let chunks: Vec<ChunkName> = (0..20).map(|i| named(host * 20 + i, 0)).collect();
            let reply = ask(&mut rig, session, redundancy, &chunks);
            for hosts in hinted_hosts(&reply, plain) {
                assert!(hosts.contains(&host_name), "{redundancy} from {host_name}: {hosts:?}");
            }
        }
    }
    assert_eq!(not_met(&mut rig), 0);
}

/// The one copy is where it was asked for from the first chunk on, also where there are only as many hosts as fragments.
#[test]
fn the_first_copy_is_at_its_anchor() {
    for hosts in [3u8, 4, 6] {
        for host in 1..=hosts {
            let mut rig = Rig::new(hosts.into());
            let class = if hosts == 6 { "copy+ec:4+2" } else { "copy+ec:2+1" };
            let session = open(&mut rig, "f", &format!("h{host}"), "local");
            let reply = ask(&mut rig, session, class, &[named(host, 0), named(host + 10, 0)]);
            assert_eq!(hinted_hosts(&reply, 1), vec![[format!("h{host}")]; 2], "{hosts} hosts");
            assert_eq!(not_met(&mut rig), 0);
        }
    }
}

#[test]
fn a_group_of_files_is_on_one_host_and_groups_are_on_many() {
    let mut rig = Rig::new(8);
    let mut all = std::collections::BTreeSet::new();
    for group in 0..20u8 {
        let mut hosts = std::collections::BTreeSet::new();
        for file in 0..4u8 {
            let session = open(&mut rig, &format!("{group} {file}"), "", &format!("collocate:{group}"));
            let reply = ask(&mut rig, session, "none", &[named(group * 8 + file, 0), named(group * 8 + file + 4, 0)]);
            hosts.extend(hinted_hosts(&reply, 1));
        }
        assert_eq!(hosts.len(), 1, "{hosts:?}");
        all.extend(hosts);
    }
    assert!(all.len() >= 5, "{all:?}");
}

/// A copy that the writer's own host can hold is not sent.
#[test]
fn a_further_copy_of_what_goes_elsewhere_stays_with_the_writer() {
    let mut rig = Rig::new(8);
    for (redundancy, plain, placement) in
        [("replica:2", 2, "collocate:g"), ("ec:4+2", 6, "collocate:g"), ("replica:2", 2, "scatter:1M")]
    {
        for host in 1..=8u8 {
            let host_name = format!("h{host}");
            let session = open(&mut rig, &format!("{redundancy} {placement} {host}"), &host_name, placement);
            let chunks: Vec<ChunkName> = (0..16).map(|i| named(host * 16 + i, u64::from(i))).collect();
            let reply = ask(&mut rig, session, redundancy, &chunks);
            let with_writer = hinted_hosts(&reply, plain).iter().filter(|hosts| hosts.contains(&host_name)).count();
            assert_eq!(with_writer, 16, "{redundancy} {placement} from {host_name}");
        }
    }
    assert_eq!(not_met(&mut rig), 0);
}

#[test]
fn regions_go_from_host_to_host() {
    let mut rig = Rig::new(8);
    let session = open(&mut rig, "f", "", "scatter:1M");
    let chunks: Vec<ChunkName> = (0..32).map(|i| named(i, u64::from(i) / 2)).collect();
    let hosts = hinted_hosts(&ask(&mut rig, session, "none", &chunks), 1);
    for pair in hosts.chunks(2) {
        assert_eq!(pair[0], pair[1], "a region is on one host");
    }
    let rounds: Vec<_> = hosts.chunks(16).collect();
    assert_eq!(rounds[0], rounds[1]);
    assert_eq!(rounds[0].iter().collect::<std::collections::BTreeSet<_>>().len(), 8);
}

/// P4's cousin: sharing never moves anybody's data. What has a place reuses only what is there; what has none, anything.
#[test]
fn content_is_shared_only_where_it_was_asked_for() {
    let mut rig = Rig::new(8);
    let put = |rig: &mut Rig, name: &str, host: &str, placement: &str| {
        let session = open(rig, name, host, placement);
        let reply = ask(rig, session, "none", &[chunk(1)]);
        let answer = reply.answers[0].clone();
        let request = Commit {
            op_id: rig.op(),
            session_id: session,
            mode: CommitMode::Replace as i32,
            size_bytes: 100,
            extents: vec![tessera_wire::Extent::of_chunk(0, 100, answer.chunk_id, &chunk(1).hash, 0)],
            acks: acks(&reply.answers),
            ..Default::default()
        };
        rig.ask(&request).unwrap();
        answer
    };
    let first = put(&mut rig, "a", "h1", "local");
    let second = put(&mut rig, "b", "h2", "local");
    assert_ne!(first.chunk_id, second.chunk_id);
    let again = put(&mut rig, "c", "h1", "local");
    assert_eq!((again.chunk_id, again.state()), (first.chunk_id, ChunkState::Durable));
    let anywhere = put(&mut rig, "d", "h3", "spread");
    assert_eq!((anywhere.chunk_id, anywhere.state()), (first.chunk_id, ChunkState::Durable));
    rig.audit();
}

#[test]
fn what_cannot_be_followed_is_done_without_and_counted() {
    let mut rig = Rig::new(6);
    rig.register_disk_of(7, 1 << 20);
    for (name, host) in [("stranger", "elsewhere"), ("nobody", "")] {
        let session = open(&mut rig, name, host, "local");
        let before = not_met(&mut rig);
        assert_eq!(ask(&mut rig, session, "none", &[named(name.len() as u8, 0)]).answers.len(), 1);
        assert_eq!(not_met(&mut rig), before + 1);
    }
    // h7's disk has no room for a chunk of 2 MiB.
    let session = open(&mut rig, "full", "h7", "local");
    let big = |c| ChunkName { len_bytes: 2 << 20, ..chunk(c) };
    let before = not_met(&mut rig);
    let first = ask(&mut rig, session, "none", &[big(200)]);
    assert_ne!(hinted_hosts(&first, 1)[0], ["h7"]);
    assert_eq!(not_met(&mut rig), before + 1);
    // A repeated request does not store it again.
    let second = ask(&mut rig, session, "none", &[big(200)]);
    assert_eq!(second.answers[0].chunk_id, first.answers[0].chunk_id);
}

/// When the groups of a host are full, the manager opens new groups that begin there.
#[test]
fn full_groups_of_an_anchor_are_followed_by_others() {
    let config = crate::config::Config { pg_cap_bytes: 10 << 20, ..config() };
    for (redundancy, plain) in [("ec:4+2", 4), ("copy+ec:4+2", 1)] {
        let mut rig = Rig::with(crate::db::Db::in_memory([7; 16]).unwrap(), config.clone(), 8);
        for round in 0..20u8 {
            let session = open(&mut rig, &format!("f{round}"), "h4", "local");
            let chunks: Vec<ChunkName> =
                (0..10).map(|i| ChunkName { len_bytes: 1 << 20, ..named(round * 10 + i, 0) }).collect();
            for hosts in hinted_hosts(&ask(&mut rig, session, redundancy, &chunks), plain) {
                assert!(hosts.contains(&"h4".to_string()), "{redundancy}: {hosts:?}");
            }
            rig.tick(2_500);
        }
        assert_eq!(not_met(&mut rig), 0, "{redundancy}");
    }
}

/// Registers a node whose disk has so many free bytes.
pub(super) fn register_with_free(rig: &mut Rig, node: u8, free_bytes: u64, capacity_bytes: u64) {
    let op_id = rig.op();
    let disk = tessera_wire::DiskInfo {
        uuid: vec![node; 16],
        capacity_bytes,
        free_bytes,
        path: format!("disk{node}"),
        ..Default::default()
    };
    let info = tessera_wire::NodeInfo {
        name: format!("n{node}"),
        host: format!("h{node}"),
        address: format!("127.0.0.1:{node}"),
        ..Default::default()
    };
    let receipt_key = vec![node; 32];
    let request = RegisterNode { op_id, node: Some(info), disks: vec![disk], receipt_key, check_only: false };
    rig.ask_as(tessera_wire::Role::Node, 0, &request).unwrap();
}

/// Allocates a chunk of so many bytes.
fn allocate(
    rig: &mut Rig,
    session_id: u64,
    redundancy: &str,
    c: u8,
    len_bytes: u64,
) -> Result<(), tessera_wire::Error> {
    let chunks = vec![ChunkName { len_bytes, ..named(c, 0) }];
    let redundancy = redundancy.to_string();
    let op_id = rig.op();
    rig.ask(&AllocateChunks { op_id, session_id, redundancy, chunks, ..Default::default() }).map(|_| ())
}

/// Some disks have room for small chunks only. Enough others have room for large ones, if only for one.
#[test]
fn large_chunks_find_groups_beside_disks_that_take_only_small_ones() {
    let few = (1 << 30) + (1 << 20);
    for much in [1 << 39, few + (1 << 20)] {
        let mut rig = Rig::new(0);
        for node in 1..=12u8 {
            register_with_free(&mut rig, node, if node <= 8 { much } else { few }, 1 << 40);
        }
        let session = open(&mut rig, "f", "", "spread");
        allocate(&mut rig, session, "ec:6+2", 1, 1 << 10).unwrap();
        let mut found = Ok(());
        for round in 0..5 {
            rig.tick(2_000);
            found = allocate(&mut rig, session, "ec:6+2", 100 + round, 8 << 20);
            if found.is_ok() {
                break;
            }
        }
        assert_eq!(found, Ok(()), "{much} bytes free");
    }
}
