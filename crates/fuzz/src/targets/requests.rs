//! Requests of clients and nodes to a manager that leads: it refuses or does what they ask, its counts agree with its rows, and a replay
//! of its log gives the same database (P4, P7, P14).

use crate::Target;
use crate::input::{Parts, split};
use crate::mutate::{index, one_in};
use crate::proto;
use crate::targets::frames;
use bytes::Bytes;
use tessera_disk::SplitMix64;
use tessera_testkit::{Cluster, recount, with_receipts};
use tessera_wire::meta::{GetStatus, List, MakeDir, Rename};
use tessera_wire::{Kind, Request, Role};

/// See the module.
pub const TARGET: Target =
    Target { name: "requests", run, seeds, adapt, runs: 150, base_bytes: 32 << 20, bytes_per_byte: 4_000 };

const NODES: usize = 4;

/// Each part is a request: two bytes of its kind, then its message.
#[must_use]
pub fn run(input: &[u8]) -> String {
    let mut cluster = Cluster::new(NODES, 1);
    let mut done = String::new();
    for part in split(input) {
        let Some((kind, body)) = parse(&part) else { continue };
        let role = if kind.is_for(Role::Client) { Role::Client } else { Role::Node };
        if !is_for_manager(kind) || !kind.is_for(role) {
            continue;
        }
        let body = match kind {
            Kind::Commit => with_receipts(cluster.db().conn(), &body).map_or(body, Bytes::from),
            _ => body,
        };
        let what = match cluster.offer(role, kind, body) {
            None => "waits".into(),
            Some(Ok(_)) => "ok".into(),
            Some(Err(error)) => {
                assert!(!error.message.is_empty(), "{}: {error:?} says nothing", kind.name());
                format!("{:?} {}", error.code(), shape(&error.message))
            }
        };
        done += &format!("{} {what};", kind.name());
    }
    cluster.now_ns += 40_000 * tessera_testkit::MS;
    cluster.tick();
    let wrong = recount(cluster.db().conn()).expect("the database");
    assert!(wrong.is_empty(), "P4: {wrong:?}");
    cluster.check_replay();
    done
}

fn shape(text: &str) -> String {
    text.chars().filter(char::is_ascii_lowercase).take(24).collect()
}

fn is_for_manager(kind: Kind) -> bool {
    !kind.is_for_peer() && !matches!(kind, Kind::Hello | Kind::PutFragments | Kind::GetFragments | Kind::GetNodeStatus)
}

fn parse(part: &[u8]) -> Option<(Kind, Bytes)> {
    let (kind, body) = part.split_first_chunk::<2>()?;
    Some((Kind::from_number(u16::from_le_bytes(*kind))?, body.to_vec().into()))
}

fn part(kind: Kind, body: &[u8]) -> Vec<u8> {
    [&(kind as u16).to_le_bytes()[..], body].concat()
}

fn request<R: Request>(request: &R) -> Vec<u8> {
    part(R::KIND, &request.encode_to_vec())
}

/// Names, files of chunks, versions; and each kind of request with every field set.
fn seeds() -> Vec<Parts> {
    let mut cluster = Cluster::new(NODES, 1);
    cluster.take_offered();
    cluster.write("a", "replica:2", &[1, 2]);
    cluster.write("b", "ec:2+1", &[1, 3]);
    cluster.write("a", "replica:2", &[4]);
    let (op_id, name) = (cluster.op(), b"d".to_vec());
    cluster.ask(&MakeDir { op_id, parent: 1, name: name.clone(), ..MakeDir::default() }).expect("a directory");
    let op_id = cluster.op();
    let rename = Rename {
        op_id,
        from_parent: 1,
        from_name: b"b".to_vec(),
        to_parent: 1,
        to_name: b"c".to_vec(),
        ..Rename::default()
    };
    cluster.ask(&rename).expect("a name");
    cluster.set_hint("redundancy", "replica:3");
    cluster.unlink("a");
    cluster.ask(&List { ino: 1, ..List::default() }).expect("the root");
    cluster.beat(0);
    let recorded: Parts = cluster.take_offered().iter().map(|(kind, body)| part(*kind, body)).collect();
    let whole = (1..=recorded.len()).step_by(3).map(|len| recorded[..len].to_vec());
    let golden = frames::golden().into_iter().filter_map(|(name, body)| {
        let kind = Kind::ALL.iter().find(|kind| kind.name() == name && is_for_manager(**kind))?;
        Some([&recorded[..2], &[part(*kind, &body), request(&GetStatus {})]].concat())
    });
    whole.chain([recorded.clone()]).chain(golden).collect()
}

/// Changes some messages, so that most requests before them still have their effect.
fn adapt(parts: &mut Parts, rng: &mut SplitMix64) {
    for _ in 0..1 + rng.below(3) {
        let at = index(rng, parts.len());
        let Some((kind, body)) = parts.get(at).and_then(|part| parse(part)) else { continue };
        let mut body = body.to_vec();
        proto::mutate(&mut body, rng);
        let changed = part(kind, &body);
        match one_in(rng, 3) {
            true => parts.insert(at, changed),
            false => parts[at] = changed,
        }
    }
}
