//! `tessera node list` and `tessera node drain`.

use super::{status, waiting};
use crate::args::NodeCommand;
use crate::exit::{Exit, Failure, Outcome, bail};
use crate::remote::Store;
use crate::term::units::plural;
use crate::term::{Out, Progress};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tessera_wire::Health;
use tessera_wire::consensus::PeerKind;
use tessera_wire::meta::{ClusterStatus, WaitReason};

/// Interval of the checks of a drain.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// `tessera node list`, `drain`.
///
/// # Errors
/// There is no such node, or the manager cannot be reached.
pub fn node(command: NodeCommand) -> Outcome {
    match command {
        NodeCommand::List { common } => {
            let out = common.output;
            let state = Store::connect(&common)?.status()?;
            match out.json {
                true => out.document(&status::nodes_document(&state)),
                false => status::node_table(&state).lines().iter().try_for_each(|line| out.line(line)),
            }
        }
        NodeCommand::Drain { node, disk, undo, follow, common } => {
            let out = common.output;
            let store = Store::connect(&common)?;
            let state = store.status()?;
            let node_id = find(&state, &node)?;
            if let Some(disk) = disk {
                check_disk(&state, node_id, &node, disk)?;
            }
            store.drain(node_id, disk.unwrap_or(0), undo)?;
            if follow {
                wait_drained(&store, out, node_id, disk)?;
            } else if !undo {
                out.note(format!("{node} drains; it serves until `tessera status` shows it as drained"));
            }
            match out.json {
                true => out.document(&status::nodes_document(&store.status()?)),
                false => Ok(()),
            }
        }
    }
}

/// The id of a node, found by name or id.
fn find(state: &ClusterStatus, word: &str) -> Outcome<u64> {
    let named: Vec<u64> = state.nodes.iter().filter(|n| n.name == word).map(|n| n.node_id).collect();
    let id = word.parse().ok().filter(|id| state.nodes.iter().any(|n| n.node_id == *id));
    match (&named[..], id) {
        ([id], _) => Ok(*id),
        ([], Some(id)) => Ok(id),
        ([], None) => {
            let names: Vec<&str> = state.nodes.iter().map(|n| &*n.name).collect();
            bail!(Exit::NotFound, "no node is called {word}; there are: {}", names.join(", "))
        }
        _ => bail!(Exit::Usage, "several nodes are called {word}; name one by its id"),
    }
}

fn check_disk(state: &ClusterStatus, node_id: u64, node: &str, disk: u64) -> Outcome {
    let disks = state.disks.iter().filter(|d| d.node_id == node_id).map(|d| d.disk_id);
    if !disks.clone().any(|id| id == disk) {
        let ids: Vec<String> = disks.map(|id| id.to_string()).collect();
        bail!(Exit::NotFound, "{node} has no disk {disk}; it has: {}", ids.join(", "));
    }
    Ok(())
}

fn wait_drained(store: &Store, out: Out, node_id: u64, disk: Option<u64>) -> Outcome {
    let progress = Progress::items(out, "drain");
    let (mut most, mut waits, mut vote) = (0, Waits::default(), None);
    loop {
        let state = store.status()?;
        let drained = |d: &&tessera_wire::DiskInfo| d.node_id == node_id && disk.is_none_or(|id| id == d.disk_id);
        let disks: Vec<_> = state.disks.iter().filter(drained).collect();
        let left: u64 = disks.iter().map(|d| d.fragments).sum();
        most = most.max(left);
        progress.set(most - left, most);
        let waiting = waiting::members(&state, |id| disks.iter().any(|d| d.disk_id == id));
        progress.message(match waiting.values().sum() {
            0 => "fragments".to_string(),
            members => format!("fragments; {} waiting for a disk", plural(members, "group member")),
        });
        if left == 0 && disk.is_none() && keeps_log(&state, node_id) {
            progress.message("fragments; its vote on the metadata goes to another node");
            let new = waiting_vote(&state).filter(|line| Some(line) != vote.as_ref());
            new.into_iter().for_each(|line| progress.caution(vote.insert(line).clone()));
        }
        waits.begin(waiting).into_iter().for_each(|line| progress.caution(line));
        if disks.iter().all(|d| d.health == Health::Drained as i32) {
            progress.finish();
            out.note("drained: it may be switched off");
            return Ok(());
        }
        if disks.iter().any(|d| d.health == Health::Up as i32) {
            progress.finish();
            return Err(Failure::new(Exit::Conflict, "the drain was taken back meanwhile"));
        }
        std::thread::sleep(CHECK_EVERY);
    }
}

/// Whether the node's voter is one of the peers that keep the metadata.
fn keeps_log(state: &ClusterStatus, node_id: u64) -> bool {
    let name = state.nodes.iter().find(|node| node.node_id == node_id).map(|node| &node.name);
    let members = || state.peers.iter().filter_map(|peer| peer.member.as_ref());
    name.is_some_and(|name| members().any(|member| member.kind() == PeerKind::Voter && member.name == *name))
}

/// Why a node's vote cannot go yet: no vote is given up while others are missing. `None`: it is about to go.
fn waiting_vote(state: &ClusterStatus) -> Option<String> {
    let down = state.peers.iter().filter(|peer| !peer.is_up).filter_map(|peer| peer.member.as_ref());
    let down: Vec<&str> = down.map(|member| &*member.name).collect();
    (!down.is_empty()).then(|| {
        let down = down.join(", ");
        format!("the drain waits: other peers that keep the metadata are down ({down}); start them, or wait until others have taken their places")
    })
}

/// The reasons for which a drain waits now.
#[derive(Default)]
struct Waits(BTreeSet<WaitReason>);

impl Waits {
    /// Notes why members wait now, and says so for each reason for which none waited before.
    fn begin(&mut self, waiting: BTreeMap<WaitReason, u64>) -> Vec<String> {
        let before = std::mem::replace(&mut self.0, waiting.keys().copied().collect());
        let new = waiting.into_iter().filter(|(reason, _)| !before.contains(reason));
        let line = |(reason, members)| {
            format!("the drain waits: {}; it then goes on by itself", waiting::sentence(reason, members))
        };
        new.map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_wire::consensus::Member;
    use tessera_wire::meta::PeerStatus;
    use tessera_wire::{DiskInfo, NodeInfo};

    #[test]
    fn a_drain_says_once_why_it_waits() {
        let mut waits = Waits::default();
        let room = |members| BTreeMap::from([(WaitReason::NoRoom, members)]);
        assert_eq!(waits.begin(BTreeMap::new()).len(), 0);
        let said = waits.begin(room(12));
        assert!(said[0].starts_with("the drain waits: no disk on a further host has room for 12"), "{said:?}");
        assert_eq!(waits.begin(room(7)).len(), 0, "it waits for the same thing");
        assert_eq!(
            waits.begin([room(7), BTreeMap::from([(WaitReason::NoHost, 2)])].into_iter().flatten().collect()).len(),
            1
        );
        assert_eq!(waits.begin(BTreeMap::new()).len(), 0);
        assert_eq!(waits.begin(room(7)).len(), 1, "it waits again");
    }

    #[test]
    fn a_drain_names_the_peers_that_its_vote_waits_for() {
        let peer = |name: &str, kind: PeerKind, is_up| PeerStatus {
            member: Some(Member { kind: kind as i32, name: name.into(), ..Member::default() }),
            is_up,
            ..PeerStatus::default()
        };
        let node = |node_id, name: &str| NodeInfo { node_id, name: name.into(), ..NodeInfo::default() };
        let mut state = ClusterStatus {
            nodes: vec![node(7, "n1"), node(8, "n2")],
            peers: vec![peer("n2", PeerKind::Manager, true), peer("n1", PeerKind::Voter, true)],
            ..ClusterStatus::default()
        };
        assert!(keeps_log(&state, 7) && !keeps_log(&state, 8), "a manager of the same name is no voter");
        assert_eq!(waiting_vote(&state), None);
        state.peers.push(peer("n3", PeerKind::Voter, false));
        assert!(waiting_vote(&state).unwrap().contains("are down (n3); start them"));
    }

    #[test]
    fn nodes_are_found_by_name_and_by_id_and_never_by_guess() {
        let node = |node_id, name: &str| NodeInfo { node_id, name: name.into(), ..NodeInfo::default() };
        let state = ClusterStatus {
            nodes: vec![node(7, "n1"), node(8, "n2"), node(9, "twin"), node(10, "twin")],
            disks: vec![DiskInfo { disk_id: 5, node_id: 7, ..DiskInfo::default() }],
            ..ClusterStatus::default()
        };
        assert_eq!(find(&state, "n1"), Ok(7));
        assert_eq!(find(&state, "8"), Ok(8));
        assert_eq!(find(&state, "n3").unwrap_err().exit, Exit::NotFound);
        assert_eq!(find(&state, "twin").unwrap_err().exit, Exit::Usage);
        assert_eq!(find(&state, "1").unwrap_err().exit, Exit::NotFound);
        assert!(check_disk(&state, 7, "n1", 5).is_ok());
        assert!(check_disk(&state, 8, "n2", 5).is_err());
    }
}
