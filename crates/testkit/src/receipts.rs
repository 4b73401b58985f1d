//! Receipts for tests that store no bytes: what nodes would have given for the fragments that a commit acknowledges.

use prost::Message;
use rusqlite::{Connection, OptionalExtension, Result, params};
use std::collections::HashMap;
use tessera_stripe::{ClassLayout, StoredFragment, describe};
use tessera_wire::meta::{ChunkAck, Commit};

/// Adds the receipts that the acknowledgements of an encoded [`Commit`] lack, as the manager's database expects them: of puts under
/// the first of the epochs that they name, or else under the group's. Bytes that are no commit stay as they are.
///
/// # Errors
/// The database fails.
pub fn with_receipts(db: &Connection, commit: &[u8]) -> Result<Vec<u8>> {
    let Ok(mut commit) = Commit::decode(commit) else { return Ok(commit.to_vec()) };
    let open = commit.open.as_ref().map_or(&[][..], |open| &open.chunks);
    let named: HashMap<u64, (Vec<u8>, u64)> = commit
        .preallocated_ids
        .iter()
        .zip(open)
        .map(|(id, name)| (*id, (name.hash.to_vec(), name.len_bytes)))
        .collect();
    for ack in commit.acks.iter_mut().filter(|ack| ack.stored.is_empty()) {
        give(db, ack, named.get(&ack.chunk_id))?;
    }
    Ok(commit.encode_to_vec())
}

fn give(db: &Connection, ack: &mut ChunkAck, named: Option<&(Vec<u8>, u64)>) -> Result<()> {
    let sql = "SELECT c.hash, c.len_bytes, c.pg_id, s.spec FROM chunks c JOIN classes s ON s.class_id = c.class_id
               WHERE chunk_id = ?1";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get(2)?, row.get(3)?));
    let found: Option<(Vec<u8>, i64, i64, String)> = db.query_row(sql, params![ack.chunk_id as i64], row).optional()?;
    let Some((hash, len, pg_id, spec)) = found else { return Ok(()) };
    let (hash, len) = named.cloned().unwrap_or((hash, len as u64));
    let class = describe(1, spec.parse().expect("a canonical class"));
    let current = || db.query_row("SELECT epoch FROM pgs WHERE pg_id = ?1", params![pg_id], |row| row.get::<_, i64>(0));
    let epoch = ack.epochs.first().map_or_else(|| Ok(current()? as u64), |epoch| Ok::<_, rusqlite::Error>(*epoch))?;
    ack.epochs.clear();
    for fragment in (0..class.fragments()).filter(|fragment| !ack.missing.contains(fragment)) {
        let sql = "SELECT d.disk_id, n.receipt_key FROM pg_members m
                   JOIN disks d ON d.disk_id = iif(m.put_to_incoming, m.incoming_disk_id, m.disk_id)
                   JOIN nodes n ON n.node_id = d.node_id WHERE m.pg_id = ?1 AND m.position = ?2";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get(1)?));
        let (disk_id, key): (i64, Vec<u8>) = db.query_row(sql, params![pg_id, fragment], read)?;
        let stored = StoredFragment::expected(&class, (ack.chunk_id, &hash, len), fragment, (disk_id as u64, epoch));
        let key = key.try_into().expect("a registered node has a key");
        ack.stored.push(fragment);
        ack.epochs.push(epoch);
        ack.receipts.push(stored.expect("a fragment of the class").receipt(&key));
    }
    Ok(())
}
