//! A Bloom filter of blocks of eight words: a key sets one bit in each word of one block, so a query costs one cache
//! line.

/// Words in a block.
const WORDS: usize = 8;

/// Keys whose blocks are fetched together.
const SIDE_BY_SIDE: usize = 16;

/// Odd multipliers that pick the bit of each word (Apache Parquet, "Split block Bloom filters").
const SALTS: [u32; WORDS] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

/// Why a filter cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BloomError {
    /// There is not enough memory.
    #[error("no memory for a filter of {keys} keys at {bits_per_key} bits each; use fewer bits or several filters")]
    Memory {
        /// Keys asked for.
        keys: usize,
        /// Bits per key asked for.
        bits_per_key: usize,
    },
}

/// A set of 64-bit hashes of keys, with no false negatives and few false positives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedBloom {
    blocks: Vec<[u32; WORDS]>,
}

impl BlockedBloom {
    /// An empty filter for `keys` keys at `bits_per_key` (8: about 3 % of other keys pass; 16: 0.1 %). It has at least
    /// one block.
    ///
    /// # Errors
    /// [`BloomError::Memory`] if memory has no room for it, or blocks cannot be numbered.
    pub fn new(keys: usize, bits_per_key: usize) -> Result<BlockedBloom, BloomError> {
        let refused = BloomError::Memory { keys, bits_per_key };
        let count = keys.checked_mul(bits_per_key).ok_or(refused)?.div_ceil(32 * WORDS).max(1);
        // 32 bits of a hash select the block.
        u32::try_from(count).map_err(|_| refused)?;
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(count).map_err(|_| refused)?;
        blocks.resize(count, [0; WORDS]);
        Ok(BlockedBloom { blocks })
    }

    /// The blocks, for queries elsewhere.
    pub fn blocks(&self) -> &[[u32; WORDS]] {
        &self.blocks
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        size_of_val(self.blocks.as_slice())
    }

    /// Adds keys by their hashes, which must be spread evenly over all 64 bits.
    pub fn insert(&mut self, hashes: &[u64]) {
        for hash in hashes {
            let at = block_of(*hash, self.blocks.len());
            self.blocks[at].iter_mut().zip(mask(*hash)).for_each(|(word, bit)| *word |= bit);
        }
    }

    /// For each hash, whether its key may have been added. Never false for an added key.
    pub fn may_hold(&self, hashes: &[u64]) -> Vec<bool> {
        let mut out = Vec::with_capacity(hashes.len());
        for group in hashes.chunks(SIDE_BY_SIDE) {
            // Fetches all blocks before testing any, so that the thread waits for memory once.
            let mut blocks = [[0u32; WORDS]; SIDE_BY_SIDE];
            for (block, hash) in blocks.iter_mut().zip(group) {
                *block = self.blocks[block_of(*hash, self.blocks.len())];
            }
            out.extend(blocks.iter().zip(group).map(|(block, hash)| covers(block, &mask(*hash))));
        }
        out
    }

    /// [`BlockedBloom::may_hold`], one hash after another, bit by bit: the definition (P10).
    pub fn may_hold_reference(&self, hashes: &[u64]) -> Vec<bool> {
        let holds = |hash: &u64| {
            let block = &self.blocks[block_of(*hash, self.blocks.len())];
            (0..WORDS).all(|i| block[i] >> ((*hash as u32).wrapping_mul(SALTS[i]) >> 27) & 1 == 1)
        };
        hashes.iter().map(holds).collect()
    }
}

/// Block of a hash, from its high half.
pub(crate) fn block_of(hash: u64, blocks: usize) -> usize {
    // There are at most 2^32 blocks, so the product fits and is below their number.
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

/// One bit per word, from the low half of a hash.
pub(crate) fn mask(hash: u64) -> [u32; WORDS] {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

fn covers(block: &[u32; WORDS], mask: &[u32; WORDS]) -> bool {
    block.iter().zip(mask).fold(0, |missing, (word, bit)| missing | (!word & bit)) == 0
}
