//! Commands about the log itself and about the facts that a restarted manager needs: terms, refusals, cached replies, leases,
//! clients with locks.

use crate::coherence::locks;
use crate::ctx::Ctx;
use crate::error::Result;
use crate::files::sessions;
use crate::internal::{CompareMetadata, NewTerm, NoteLeases, NoteLockers, PruneReplies, RecordRefusal};
use crate::log::reply_cache;
use crate::map::tables;
use crate::namespace::inodes;
use crate::soft::Effect;

/// Applies [`NewTerm`].
pub fn new_term(ctx: &mut Ctx, command: &NewTerm) -> Result<()> {
    let before = ctx.meta.term;
    ctx.meta.term = before.max(command.term);
    assert!(ctx.meta.term >= before, "the term never falls: {before}, then {}", ctx.meta.term);
    inodes::date_root(ctx.db, ctx.wall_ns)?;
    if command.restored {
        tables::jump_past_lost_entries(ctx)?;
        sessions::end_writers(ctx)?;
    }
    Ok(())
}

/// Applies [`RecordRefusal`]: the batch caches the refusal with its replies.
pub fn record_refusal(_: &mut Ctx, _: &RecordRefusal) -> Result<()> {
    Ok(())
}

/// Applies [`PruneReplies`].
///
/// # Errors
/// The database fails.
pub fn prune_replies(ctx: &mut Ctx, command: &PruneReplies) -> Result<()> {
    Ok(reply_cache::delete_to(ctx.db, command.to_seq)?)
}

/// Applies [`CompareMetadata`]: what is compared is the state after its entry.
pub fn compare_metadata(ctx: &mut Ctx, command: &CompareMetadata) -> Result<()> {
    ctx.after_commit(Effect::Compare(command.clone()));
    Ok(())
}

/// Applies [`NoteLeases`].
pub fn note_leases(ctx: &mut Ctx, _: &NoteLeases) -> Result<()> {
    ctx.meta.leases_granted = 1;
    Ok(())
}

/// Applies [`NoteLockers`].
pub fn note_lockers(ctx: &mut Ctx, command: &NoteLockers) -> Result<()> {
    locks::record(ctx.db, &command.client_ids)?;
    ctx.after_commit(Effect::LockClientsRecorded(command.client_ids.iter().copied().collect()));
    Ok(())
}
