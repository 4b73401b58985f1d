//! `tessera manager list`, `remove` and `transfer`.

use super::status;
use crate::args::{Common, ManagerCommand};
use crate::exit::{Exit, Outcome, bail};
use crate::remote::Store;
use crate::term::Table;
use std::time::{Duration, Instant};
use tessera_wire::consensus::{Member, PeerKind};
use tessera_wire::meta::{ClusterStatus, PeerChange, PeerStatus};

/// Interval of the looks whether a change has happened.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Limit of the wait for a change.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a subcommand.
///
/// # Errors
/// There is no such manager, it cannot be changed so, or no manager answers.
pub fn manager(command: ManagerCommand) -> Outcome {
    match command {
        ManagerCommand::List { common } => show(&common, &Store::connect(&common)?.status()?),
        ManagerCommand::Remove { peer, common } => change(&common, &peer, PeerChange::Remove),
        ManagerCommand::Transfer { peer, common } => change(&common, &peer, PeerChange::Transfer),
        ManagerCommand::Add(_) => bail!(Exit::Usage, "tessera manager add runs a manager"),
    }
}

fn show(common: &Common, state: &ClusterStatus) -> Outcome {
    let out = common.output;
    match out.json {
        true => out.document(&status::peers_document(state))?,
        false => table(state).lines().iter().try_for_each(|line| out.line(line))?,
    }
    for note in [&state.surplus_managers, &state.no_room].into_iter().filter(|note| !note.is_empty()) {
        out.note(note);
    }
    Ok(())
}

fn table(state: &ClusterStatus) -> Table {
    let mut table = Table::new("lllllrl", &["name", "kind", "host", "address", "state", "entry", "id"]);
    for peer in &state.peers {
        let member = member(peer);
        let state = match (peer.leads, peer.is_up, peer.votes, peer.unapplied) {
            (true, ..) => "leads".to_string(),
            _ if peer.is_full => "its disk is full".to_string(),
            (_, false, ..) => "missing".to_string(),
            (_, _, false, _) => "catches up".to_string(),
            (_, _, true, 0) => "follows".to_string(),
            (_, _, true, entries) => format!("applies {entries} entries"),
        };
        let kind = if member.kind() == PeerKind::Manager { "manager" } else { "voter" };
        let entry = peer.log_seq.to_string();
        table.row([member.name, kind.into(), member.host, member.address, state, entry, format!("{:016x}", member.id)]);
    }
    table
}

fn member(peer: &PeerStatus) -> Member {
    peer.member.clone().unwrap_or_default()
}

fn change(common: &Common, word: &str, change: PeerChange) -> Outcome {
    let store = Store::connect(common)?;
    let state = store.status()?;
    let id = find(&state, word)?;
    // The manager's own refusal would be repeated until --wait is over.
    let refuse_missing = |state: &ClusterStatus| match change {
        PeerChange::Transfer if state.peers.iter().any(|peer| member(peer).id == id && !peer.is_up) => {
            bail!(Exit::Unavailable, "{word} does not answer, so it cannot lead; start it first")
        }
        _ => Ok(()),
    };
    refuse_missing(&state)?;
    store.change_peer(id, change)?;
    let is_done = |state: &ClusterStatus| match change {
        PeerChange::Remove => state.peers.iter().all(|peer| member(peer).id != id),
        _ => state.peers.iter().any(|peer| member(peer).id == id && peer.leads),
    };
    let give_up = Instant::now() + PATIENCE;
    loop {
        let state = store.status()?;
        if is_done(&state) {
            return show(common, &state);
        }
        refuse_missing(&state)?;
        if Instant::now() >= give_up {
            bail!(Exit::Unavailable, "{word}: not done after {} s; see tessera manager list", PATIENCE.as_secs());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The id of a peer by its name, host, address or id. A name or host of several managers is refused.
fn find(state: &ClusterStatus, word: &str) -> Outcome<u64> {
    let members = || state.peers.iter().map(member);
    let is_called = |m: &Member| {
        let by_host = m.kind() == PeerKind::Manager && m.host == word;
        m.name == word || m.address == word || by_host || format!("{:016x}", m.id) == word
    };
    let found: Vec<Member> = members().filter(is_called).collect();
    match &found[..] {
        [one] => Ok(one.id),
        [] => {
            let names: Vec<String> = members().map(|m| m.name).collect();
            bail!(Exit::NotFound, "no peer is called {word}; there are: {}", names.join(", "))
        }
        _ => bail!(Exit::Usage, "{word} names {} peers; give an address or id (see tessera manager list)", found.len()),
    }
}
