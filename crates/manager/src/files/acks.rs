//! Acknowledgements: which fragments of a chunk count as stored, by epoch and receipt, and what the rows say afterwards.

use crate::chunks::missing::{self, Cause};
use crate::chunks::table;
use crate::ctx::Ctx;
use crate::db::cache::Pg;
use crate::db::rows::Missing;
use crate::db::sessions::Session;
use crate::db::sql::{TableRow, args, row};
use crate::error::{Result, invalid};
use crate::files::receipts;
use std::sync::LazyLock;
use tessera_stripe::ClassLayout;
use tessera_wire::ClassInfo;
use tessera_wire::meta::ChunkAck;

row! {
    /// A chunk of which fragments are acknowledged.
    pub struct Chunk {
        pub chunk_id: u64,
        pub len_bytes: u64,
        pub class_id: u32,
        pub pg_id: u64,
        pub committed: bool = "state = 2",
        pub refs: i64,
        pub domain: u32,
        pub hash: Vec<u8>,
    }
}

impl Chunk {
    /// The chunk `chunk_id`, if it has a row.
    ///
    /// # Errors
    /// The database fails.
    pub fn find(ctx: &Ctx<'_>, chunk_id: u64) -> rusqlite::Result<Option<Chunk>> {
        static SELECT: LazyLock<String> = LazyLock::new(|| Chunk::select("FROM chunks WHERE chunk_id = ?1"));
        ctx.db.first::<Chunk>(&SELECT, args![chunk_id])
    }

    /// The chunk `chunk_id`, which `session` names.
    ///
    /// # Errors
    /// `Invalid` if the session's domain has no such chunk, or the database fails.
    pub fn load(ctx: &Ctx<'_>, session: &Session, chunk_id: u64) -> Result<Chunk> {
        match Chunk::find(ctx, chunk_id)? {
            Some(chunk) if chunk.domain == session.domain => Ok(chunk),
            _ => invalid(format!(
                "chunk {chunk_id} is not known any more: what a write stores and does not commit within garbage_hold_ms may be removed; \
                 write again, and raise garbage_hold_ms of the managers if a write takes longer"
            )),
        }
    }

    /// Whether the session that gives `ack` has stored it, and no version names it yet.
    pub fn is_new(&self, ack: Option<&ChunkAck>, class: &ClassInfo) -> bool {
        let stored_whole = || ack.is_some_and(|ack| ack.stored.len() == class.fragments() as usize);
        !self.committed || (self.refs == 0 && stored_whole())
    }

    /// Id, name and length.
    pub fn named(&self) -> receipts::Named<'_> {
        (self.chunk_id, &self.hash, self.len_bytes)
    }

    /// Sorts the fragments `asked` by how `ack` acknowledges them.
    ///
    /// # Errors
    /// `Invalid` if the acknowledgement contradicts the chunk or its group, or the database fails.
    pub fn judge(
        &self,
        ctx: &Ctx<'_>,
        ack: Option<&ChunkAck>,
        pg: &Pg,
        class: &ClassInfo,
        asked: &[u32],
    ) -> Result<Verdict> {
        let mut verdict = self.judge_epochs(ack, pg, class, asked)?;
        verdict.stale.extend(receipts::take_unproven(ctx, self.named(), pg, class, ack, &mut verdict.good)?);
        Ok(verdict)
    }

    fn judge_epochs(&self, ack: Option<&ChunkAck>, pg: &Pg, class: &ClassInfo, asked: &[u32]) -> Result<Verdict> {
        let id = self.chunk_id;
        let Some(ack) = ack else {
            return match self.committed {
                true => Ok(Verdict { good: Vec::new(), stale: Vec::new(), missing: asked.to_vec() }),
                false => {
                    invalid(format!("chunk {id} is new and nothing of it is acknowledged; store its fragments first"))
                }
            };
        };
        if ack.epoch == 0 || ack.epoch > pg.epoch {
            let text = format!("acknowledged under epoch {}, group {} is at {}", ack.epoch, pg.pg_id, pg.epoch);
            return invalid(format!("chunk {id}: {text}"));
        }
        if let Some(fragment) = ack.missing.iter().find(|&&fragment| fragment >= class.fragments()) {
            return invalid(format!("chunk {id}: fragment {fragment} of a class with {} fragments", class.fragments()));
        }
        let (missing, stored): (Vec<u32>, Vec<u32>) = asked.iter().partition(|fragment| ack.missing.contains(fragment));
        let (good, stale) = stored
            .into_iter()
            .partition(|&fragment| pg.members.get(fragment as usize).is_some_and(|m| m.to_wire().accepts(ack.epoch)));
        let verdict = Verdict { good, stale, missing };
        let judged = verdict.good.len() + verdict.stale.len() + verdict.missing.len();
        assert_eq!(judged, asked.len(), "chunk {id}: each fragment has one verdict");
        Ok(verdict)
    }

    /// Notes what a verdict without stale fragments says is stored, and what is missing.
    ///
    /// # Errors
    /// The database fails.
    pub fn write(&self, ctx: &Ctx<'_>, pg: &Pg, class: &ClassInfo, verdict: &Verdict) -> rusqlite::Result<()> {
        let (chunk_id, pg_id) = (self.chunk_id, pg.pg_id);
        assert!(verdict.stale.is_empty(), "chunk {chunk_id}: a stale acknowledgement commits nothing");
        assert_eq!(self.pg_id, pg_id, "chunk {chunk_id}: judged by the members of its own group");
        if self.committed {
            if verdict.good.iter().any(|&fragment| !class.is_plain(fragment)) {
                table::lower_proof(ctx, chunk_id, table::CONTENT_PROVEN)?;
            }
            return verdict.good.iter().try_for_each(|&fragment| missing::delete(ctx, chunk_id, fragment, 0));
        }
        for &fragment in &verdict.missing {
            missing::insert(ctx, Missing { chunk_id, fragment, incoming: 0, pg_id }, Cause::Unacknowledged)?;
        }
        // The put went to the old disk of a moving member, and the backfill has already passed this chunk.
        for (fragment, member) in (0..).zip(&pg.members) {
            let moving = member.incoming != 0 && !member.put_to_incoming;
            if moving && chunk_id <= member.fill_cursor {
                missing::insert(ctx, Missing { chunk_id, fragment, incoming: 1, pg_id }, Cause::Passed)?;
            }
        }
        Ok(())
    }
}

/// The requested fragments of a chunk, sorted by how they were acknowledged.
pub struct Verdict {
    /// Acknowledged under an epoch that still counts, with a receipt.
    pub good: Vec<u32>,
    /// Acknowledged under an epoch that no longer counts (P11), or without a receipt.
    pub stale: Vec<u32>,
    /// Not acknowledged.
    pub missing: Vec<u32>,
}
