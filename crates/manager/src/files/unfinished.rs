//! Chunks that a writer has stored whole and not committed yet.
//!
//! A writer reports them with its next dedup question, or when it closes its session. The manager checks their receipts as a commit
//! does; from then on they are known content like any chunk without references (P2), and garbage collection keeps them for a while
//! ([`crate::chunks::garbage`]). So a write that was interrupted finds them when it is repeated, even if its process was killed.

use crate::chunks::refs::RefChanges;
use crate::ctx::Ctx;
use crate::db::sessions::Session;
use crate::error::{Failure, Result};
use crate::files::acks::Chunk;
use tessera_stripe::ClassLayout;
use tessera_wire::meta::ChunkAck;

/// Commits the pending chunks of which `stored` proves every fragment. Nothing fails for what proves less: a write does not depend
/// on these reports.
///
/// # Errors
/// The database fails.
pub fn keep(ctx: &mut Ctx<'_>, session: &Session, stored: &[ChunkAck]) -> Result<()> {
    for ack in stored {
        let Some(chunk) = Chunk::find(ctx, ack.chunk_id)? else { continue };
        if chunk.committed || chunk.domain != session.domain {
            continue;
        }
        let (pg, class) = (ctx.caches.pg(ctx.db, chunk.pg_id)?, ctx.class(chunk.class_id)?);
        let all: Vec<u32> = (0..class.fragments()).collect();
        let verdict = match chunk.judge(ctx, Some(ack), &pg, &class, &all) {
            Ok(verdict) if verdict.good.len() == all.len() => verdict,
            Ok(_) | Err(Failure::Refused(_)) => continue,
            Err(failure) => return Err(failure),
        };
        chunk.write(ctx, &pg, &class, &verdict)?;
        let mut refs = RefChanges::of_unfinished();
        refs.commit(ctx, chunk.chunk_id, chunk.len_bytes, chunk.class_id)?;
        refs.apply(ctx)?;
    }
    Ok(())
}
