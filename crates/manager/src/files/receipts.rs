//! Receipts: a client's word that a fragment is stored counts only with the receipt of the node that checked and stored it.
//!
//! A node gives a receipt for a copy or slice only if its bytes are a part of the chunk that the put named. The receipt states
//! chunk id, name, place in the chunk, disk, and epoch of the put. So the content of a chunk that any client can name by its hash is
//! what the hash says, whatever client stored it (P2). And a client that kept a receipt shows with it what its node stored then, not
//! what it still holds: whenever a disk or a fragment is lost, the epoch rises, and older receipts do not count (P11).

use crate::ctx::Ctx;
use crate::db::cache::Pg;
use tessera_failpoint as failpoint;
use tessera_stripe::{KEY_BYTES, StoredFragment};
use tessera_wire::ClassInfo;
use tessera_wire::meta::ChunkAck;

/// Id, name and length of a chunk.
pub type Named<'a> = (u64, &'a [u8], u64);

/// What a client says of one fragment that it stored.
#[derive(Debug, Clone, Copy)]
pub struct Receipt {
    /// Fragment number.
    pub fragment: u32,
    /// Epoch of the put.
    pub epoch: u64,
    /// What the node gave. Without a receipt it is 0, which no node gives on purpose.
    pub number: u64,
}

impl Receipt {
    /// What `ack` says of a fragment.
    pub fn of(ack: &ChunkAck, fragment: u32) -> Receipt {
        let at = ack.stored.iter().position(|stored| *stored == fragment);
        let given = at.and_then(|at| Some((*ack.epochs.get(at)?, *ack.receipts.get(at)?)));
        let (epoch, number) = given.unwrap_or_default();
        Receipt { fragment, epoch, number }
    }
}

/// Whether `receipt` is what the node of the disk that takes the fragment's puts gives for it, and neither that disk nor the
/// fragment was lost since. `since_epoch`: when the fragment was last found lost.
///
/// # Errors
/// The database fails.
pub fn counts(
    ctx: &Ctx<'_>,
    chunk: Named<'_>,
    (pg, class): (&Pg, &ClassInfo),
    receipt: Receipt,
    since_epoch: u64,
) -> rusqlite::Result<bool> {
    if failpoint::is_active("manager.receipts_ignored") {
        return Ok(true);
    }
    let Receipt { fragment, epoch, number } = receipt;
    let Some(member) = pg.members.get(fragment as usize) else { return Ok(false) };
    let is_old = epoch < since_epoch.max(member.since_epoch);
    if is_old && !failpoint::is_active("manager.old_receipts_count") {
        return Ok(false);
    }
    let disk_id = member.put_disk();
    let node_map = ctx.caches.node_map(ctx.db)?;
    let key = node_map.disks.get(&disk_id).and_then(|disk| <[u8; KEY_BYTES]>::try_from(&disk.receipt_key[..]).ok());
    let expected = StoredFragment::expected(class, chunk, fragment, (disk_id, epoch));
    Ok(key.zip(expected).is_some_and(|(key, expected)| expected.receipt(&key) == number))
}
