//! Acknowledgements: which fragments of a chunk count as stored, and what the rows say afterwards.

use crate::chunks::missing::{self, Cause};
use crate::chunks::table;
use crate::ctx::Ctx;
use crate::db::cache::Pg;
use crate::db::rows::Missing;
use crate::db::sessions::Session;
use crate::db::sql::{TableRow, args, row};
use crate::error::{Result, invalid};
use crate::files::receipts::{self, Receipt};
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
        let id = self.chunk_id;
        let Some(ack) = ack else {
            return match self.committed {
                true => Ok(Verdict { missing: asked.to_vec(), ..Verdict::default() }),
                false => {
                    invalid(format!("chunk {id} is new and nothing of it is acknowledged; store its fragments first"))
                }
            };
        };
        if let Some(epoch) = ack.epochs.iter().find(|&&epoch| epoch == 0 || epoch > pg.epoch) {
            let text = format!("acknowledged under epoch {epoch}, group {} is at {}", pg.pg_id, pg.epoch);
            return invalid(format!("chunk {id}: {text}"));
        }
        if let Some(fragment) = ack.missing.iter().find(|&&fragment| fragment >= class.fragments()) {
            return invalid(format!("chunk {id}: fragment {fragment} of a class with {} fragments", class.fragments()));
        }
        let since = missing::since(ctx.db, id)?;
        let mut verdict = Verdict::default();
        for &fragment in asked {
            let (receipt, since_epoch) = (Receipt::of(ack, fragment), since.get(&fragment).copied());
            let of = (pg, class);
            if ack.missing.contains(&fragment) {
                verdict.missing.push(fragment);
            } else if receipts::counts(ctx, self.named(), of, receipt, since_epoch.unwrap_or(0))? {
                verdict.good.push(fragment);
                verdict.supplied.extend(since_epoch.map(|_| fragment));
            } else {
                verdict.stale.push(fragment);
            }
        }
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
        verdict.supplied.iter().try_for_each(|&fragment| missing::delete(ctx, chunk_id, fragment, 0))?;
        if self.committed {
            if verdict.supplied.iter().any(|&fragment| !class.is_plain(fragment)) {
                table::lower_proof(ctx, chunk_id, table::CONTENT_PROVEN)?;
            }
            return Ok(());
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
#[derive(Default)]
pub struct Verdict {
    /// Acknowledged, with a receipt that counts.
    pub good: Vec<u32>,
    /// Those of `good` that were known as missing.
    pub supplied: Vec<u32>,
    /// Acknowledged with a receipt that does not count (any more: P11), or without one.
    pub stale: Vec<u32>,
    /// Not acknowledged.
    pub missing: Vec<u32>,
}
