//! Receipts: what a node has checked and stored, in a form that the manager believes and a client cannot make up.
//!
//! A receipt is a keyed hash of the facts under a key that only the node and the manager know. The client carries it from the
//! put to the commit. So what a client commits under a name is what nodes have found to be a part of the chunk of that name.

use crate::layout::ClassLayout;
use tessera_accel::hash::{HASH_BYTES, keyed_hash};

/// Bytes of a node's key.
pub const KEY_BYTES: usize = HASH_BYTES;

/// What a receipt says: this disk durably holds this fragment, which was put under this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredFragment<'a> {
    /// Chunk.
    pub chunk_id: u64,
    /// Fragment number.
    pub fragment: u32,
    /// Disk that holds it.
    pub disk_id: u64,
    /// Epoch of the put. What the manager found lost under a later epoch is not what this put stored (P11).
    pub epoch: u64,
    /// Name of the chunk.
    pub name: &'a [u8],
    /// Length of the chunk.
    pub chunk_len: u64,
    /// Position in the chunk of the bytes that the node has checked; `None`: parity, which it has not.
    pub offset: Option<u64>,
    /// Length of the fragment.
    pub len: u64,
}

impl<'a> StoredFragment<'a> {
    /// The facts that the receipt of a fragment must state; `None` if the class has no such fragment.
    pub fn expected(
        class: &impl ClassLayout,
        (chunk_id, name, chunk_len): (u64, &'a [u8], u64),
        fragment: u32,
        (disk_id, epoch): (u64, u64),
    ) -> Option<StoredFragment<'a>> {
        let len = class.fragment_bytes(chunk_len, fragment)?;
        let offset = class.plain_offset(chunk_len, fragment);
        Some(StoredFragment { chunk_id, fragment, disk_id, epoch, name, chunk_len, offset, len })
    }

    /// The receipt under a node's key.
    pub fn receipt(&self, key: &[u8; KEY_BYTES]) -> u64 {
        let StoredFragment { chunk_id, fragment, disk_id, epoch, name, chunk_len, offset, len } = *self;
        let numbers = [chunk_id, u64::from(fragment), disk_id, epoch, chunk_len, offset.unwrap_or(u64::MAX), len];
        let mut facts = Vec::with_capacity(numbers.len() * 8 + name.len());
        numbers.iter().for_each(|number| facts.extend(number.to_le_bytes()));
        facts.extend_from_slice(name);
        let [a, b, c, d, e, f, g, h, ..] = keyed_hash(key, &facts).0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::describe;

    /// Each fact, and the key, changes the receipt.
    #[test]
    fn a_receipt_states_every_fact() {
        let (class, name) = (describe(1, "ec:4+2".parse().unwrap()), [7; 32]);
        let facts = StoredFragment::expected(&class, (5, &name, 100_000), 1, (9, 3)).unwrap();
        assert_eq!((facts.offset, facts.len), (Some(32_768), 32_768));
        assert_eq!(StoredFragment::expected(&class, (5, &name, 100_000), 5, (9, 3)).unwrap().offset, None);
        assert_eq!(StoredFragment::expected(&class, (5, &name, 100_000), 6, (9, 3)), None);
        let others = [
            StoredFragment { chunk_id: 6, ..facts },
            StoredFragment { fragment: 2, ..facts },
            StoredFragment { disk_id: 8, ..facts },
            StoredFragment { epoch: 4, ..facts },
            StoredFragment { name: &[8; 32], ..facts },
            StoredFragment { chunk_len: 100_001, ..facts },
            StoredFragment { offset: Some(0), ..facts },
            StoredFragment { offset: None, ..facts },
            StoredFragment { len: 1, ..facts },
        ];
        let receipts = others.iter().map(|it| it.receipt(&[1; 32])).chain([facts.receipt(&[2; 32])]);
        assert!(receipts.into_iter().all(|receipt| receipt != facts.receipt(&[1; 32])));
        // Stored nowhere, but nodes and managers of one cluster must agree.
        assert_eq!(facts.receipt(&[1; 32]), facts.receipt(&[1; 32]));
    }
}
