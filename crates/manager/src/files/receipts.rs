//! Receipts: a client's word that a fragment is stored counts only with the receipt of the node that checked and stored it.
//!
//! A node gives a receipt for a copy or slice only if its bytes are a part of the chunk that the put named. The receipt states
//! chunk id, name, place in the chunk and disk. So the content of a chunk that any client can name by its hash is what the hash
//! says, whatever client stored it (P2).

use crate::ctx::Ctx;
use crate::db::cache::Pg;
use tessera_failpoint as failpoint;
use tessera_stripe::{KEY_BYTES, StoredFragment};
use tessera_wire::ClassInfo;
use tessera_wire::meta::ChunkAck;

/// Id, name and length of a chunk.
pub type Named<'a> = (u64, &'a [u8], u64);

/// Whether `receipt` is what the node of the disk that takes the fragment's puts gives for it.
///
/// # Errors
/// The database fails.
pub fn is_proven(
    ctx: &Ctx<'_>,
    chunk: Named<'_>,
    pg: &Pg,
    class: &ClassInfo,
    (fragment, receipt): (u32, u64),
) -> rusqlite::Result<bool> {
    if failpoint::is_active("manager.receipts_ignored") {
        return Ok(true);
    }
    let Some(disk_id) = pg.members.get(fragment as usize).map(|m| m.put_disk()) else { return Ok(false) };
    let node_map = ctx.caches.node_map(ctx.db)?;
    let key = node_map.disks.get(&disk_id).and_then(|disk| <[u8; KEY_BYTES]>::try_from(&disk.receipt_key[..]).ok());
    let expected = StoredFragment::expected(class, chunk, fragment, disk_id);
    Ok(key.zip(expected).is_some_and(|(key, expected)| expected.receipt(&key) == receipt))
}

/// Takes the fragments without a valid receipt out of `acknowledged`.
///
/// # Errors
/// The database fails.
pub fn take_unproven(
    ctx: &Ctx<'_>,
    chunk: Named<'_>,
    pg: &Pg,
    class: &ClassInfo,
    ack: Option<&ChunkAck>,
    acknowledged: &mut Vec<u32>,
) -> rusqlite::Result<Vec<u32>> {
    let given = |fragment: u32| ack?.stored.iter().zip(&ack?.receipts).find(|(stored, _)| **stored == fragment);
    let mut unproven = Vec::new();
    for &fragment in acknowledged.iter() {
        // Without a receipt the number is 0, which no node gives on purpose.
        let receipt = given(fragment).map_or(0, |(_, receipt)| *receipt);
        if !is_proven(ctx, chunk, pg, class, (fragment, receipt))? {
            unproven.push(fragment);
        }
    }
    acknowledged.retain(|fragment| !unproven.contains(fragment));
    Ok(unproven)
}
