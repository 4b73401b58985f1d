//! `tessera manager --restore`: prints what each peer has, and restores the group from what is left.

use super::config::{self, ManagerSettings};
use super::manager::of_database;
use crate::exit::{Exit, Failure, Outcome, bail};
use crate::term::{Out, Table};
use serde_json::{Value, json};
use tessera_manager::group::GroupError;
use tessera_manager::group::restore::{PeerState, RestoreError, Survey};
use tessera_manager::shell::{PlannedRestore, RestoreOptions};
use tessera_net::Endpoint;
use tessera_wire::consensus::{Member, PeerKind};

/// Restores the directory of `settings`, with `--yes`; the caller then serves it.
///
/// # Errors
/// Nothing needs to be restored, nothing can be, or `--yes` is missing.
pub fn run(settings: &ManagerSettings) -> Outcome {
    let args = &settings.restoring;
    let out = Out { json: args.json, quiet: false };
    let from = config::endpoints("from", &args.from)?;
    let listen = settings.listen.first().map(Endpoint::to_string).unwrap_or_default();
    let options = RestoreOptions {
        from,
        state_of: args.state_of.clone(),
        force: args.force,
        host: settings.host.clone(),
        address: settings.advertise.clone().unwrap_or(listen),
    };
    let planned = PlannedRestore::new(&settings.dir, options).map_err(refused)?;
    let survey = planned.survey();
    match args.json {
        true => out.document(&document(survey))?,
        // A daemon's stdout has its addresses.
        false if args.yes => table(survey).lines().iter().for_each(|line| out.note(line)),
        false => out.table(&table(survey))?,
    }
    for (address, why) in survey.silent.iter().filter(|(address, _)| args.from.contains(address)) {
        out.note(format!("{address}: {}", why.message));
    }
    planned.check().map_err(refused)?;
    if !args.yes {
        bail!(
            Exit::Refused,
            "nothing has changed; with --yes the peers that answer are fenced, so that they never take part in this group again, and \
             a new group begins with the newest state"
        );
    }
    let restored = planned.run().map_err(refused)?;
    let (term, index) = restored.state;
    out.note(format!("restored from {}: term {term}, entry {index}", restored.from.name));
    out.note("nodes, mounts and commands find this manager at the addresses in their --manager alone: start those that do not name it again");
    Ok(())
}

/// The failure of a restore.
pub fn refused(error: RestoreError) -> Failure {
    let exit = match &error {
        RestoreError::NoPeer { .. } | RestoreError::NoMember { .. } => Exit::Unavailable,
        RestoreError::Occupied { .. } => Exit::Conflict,
        RestoreError::NoSuchPeer { .. } => Exit::NotFound,
        RestoreError::Unreadable { .. } => Exit::Corrupt,
        RestoreError::Group(GroupError::Db(error)) => of_database(error),
        RestoreError::Group(_) | RestoreError::Replay(_) | RestoreError::CannotFence { .. } => Exit::Failed,
        _ => Exit::Refused,
    };
    Failure::new(exit, error.to_string())
}

/// What a peer is at the moment.
fn state(survey: &Survey, member: &Member) -> String {
    match survey.peers.get(&member.id) {
        None => "does not answer".into(),
        Some(peer) if !peer.held.stopped.is_empty() => "has stopped".into(),
        Some(peer) if peer.fence().is_some() => "is fenced".into(),
        Some(_) => "answers".into(),
    }
}

/// A row for each member of the newest membership that is known, and for what else answers.
pub fn table(survey: &Survey) -> Table {
    let names = &["name", "kind", "host", "address", "votes", "state", "term", "entry", "snapshot", "id"];
    let mut table = Table::new("llllllrrrl", names);
    let number = |number: u64| if number == 0 { String::new() } else { number.to_string() };
    let mut row = |member: &Member, votes: bool, state: String, peer: Option<&PeerState>| {
        let (term, index) = peer.map_or((0, 0), PeerState::state);
        let snapshot = peer.and_then(|peer| peer.held.snapshot.as_ref()).map_or(0, |held| held.index);
        table.row([
            member.name.clone(),
            kind(member).into(),
            member.host.clone(),
            peer.map_or(&member.address, |peer| &peer.address).clone(),
            if votes { "yes" } else { "no" }.into(),
            state,
            number(term),
            number(index),
            number(snapshot),
            format!("{:016x}", member.id),
        ]);
    };
    for member in &survey.members() {
        row(member, survey.is_voter(member.id), state(survey, member), survey.peers.get(&member.id));
    }
    for peer in &survey.others {
        row(&peer.member(), false, "is no member".into(), Some(peer));
    }
    table
}

fn kind(member: &Member) -> &'static str {
    if member.kind() == PeerKind::Manager { "manager" } else { "voter" }
}

/// The table as JSON.
pub fn document(survey: &Survey) -> Value {
    let one = |member: &Member, peer: Option<&PeerState>| {
        let state = peer.map(PeerState::state);
        json!({
            "id": format!("{:016x}", member.id),
            "name": member.name,
            "kind": kind(member),
            "host": member.host,
            "address": peer.map_or(&member.address, |peer| &peer.address),
            "votes": survey.is_voter(member.id),
            "answers": peer.is_some(),
            "fenced_by": peer.and_then(PeerState::fence).map(|(restore, _)| format!("{restore:016x}")),
            "stopped": peer.map(|peer| &peer.held.stopped).filter(|why| !why.is_empty()),
            "term": state.map(|state| state.0),
            "log_seq": state.map(|state| state.1),
            "snapshot_seq": peer.and_then(|peer| peer.held.snapshot.as_ref()).map(|held| held.index),
        })
    };
    let (up, voters) = survey.voters();
    let members = survey.members();
    let members = members.iter().map(|member| one(member, survey.peers.get(&member.id)));
    let silent = survey.silent.iter().map(|(address, why)| json!({"address": address, "why": why.message}));
    json!({
        "cluster": tessera_wire::hex(&survey.cluster_id),
        "voters_up": up,
        "voters": voters,
        "members": members.collect::<Vec<_>>(),
        "others": survey.others.iter().map(|peer| one(&peer.member(), Some(peer))).collect::<Vec<_>>(),
        "silent": silent.collect::<Vec<_>>(),
    })
}
