//! The seam to groups, membership, repair, garbage and status: the core calls these functions and no other of theirs.

use crate::error::{Outcome, refuse};
use crate::state::{Ctx, Proposal, View};
use tessera_wire::{Code, Kind};

/// Soft state of nodes, disks and tasks.
#[derive(Default)]
pub struct ClusterSoft {
    /// The open groups and their weights.
    pub chooser: crate::placement::Chooser,
    /// What nodes say of themselves and their disks.
    pub figures: crate::figures::Figures,
}

/// Requests that are logged commands applied here.
pub fn is_command(kind: Kind) -> bool {
    matches!(kind, Kind::RegisterNode | Kind::Drain)
}

/// Applies a logged request ([`is_command`]) or an internal command (0x8100 and up, internal.rs); the encoded reply.
pub fn apply(_ctx: &mut Ctx, kind: u32, _body: &[u8]) -> Outcome<Vec<u8>> {
    refuse(Code::Unsupported, format!("command {kind:#06x} is not known to this release"))
}

/// Answers a read (GetMap, GetStatus) from the committed state.
pub fn read(_view: &mut View, kind: Kind, _body: &[u8]) -> Outcome<Vec<u8>> {
    refuse(Code::Unsupported, format!("{} is not known to this release", kind.name()))
}

/// Heartbeat, Inventory, ReportBad, Maintain: takes in what is soft, and proposes what must be logged. The answer
/// ([`reply`]) is composed once the proposals are committed (at once when there are none).
pub fn take_in(_view: &mut View, kind: Kind, _body: &[u8]) -> Outcome<Vec<Proposal>> {
    refuse(Code::Unsupported, format!("{} is not known to this release", kind.name()))
}

/// The answer to a request that [`take_in`] accepted.
pub fn reply(_view: &mut View, kind: Kind, _body: &[u8]) -> Outcome<Vec<u8>> {
    refuse(Code::Unsupported, format!("{} is not known to this release", kind.name()))
}

/// Proposals that time brings: nodes down and out, fills, garbage, groups to open and close.
pub fn on_tick(_view: &mut View) -> Vec<Proposal> {
    Vec::new()
}

/// Earliest time (ns) at which [`on_tick`] has something to do, as far as known; the shell ticks at least every 100 ms anyway.
pub fn after_start(_view: &mut View) {}
