//! The kernels in `kernels/`, as the host sees them: the embedded PTX, each kernel's name, and the arguments of a
//! launch. The kernel's source documents the fields; this module only passes them.
//!
//! Addresses are those of the device's memory: real ones on CUDA, the host's on the emulated device.

/// All kernels as PTX for compute_75, which the CUDA driver compiles for the card it finds.
pub const PTX: &str = include_str!("../kernels/kernels.ptx");

macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident: $name:literal, $threads:literal threads, $argument:ident;)+) => {
        /// A kernel by name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Kernel {
            $($(#[$doc])* $kernel,)+
        }

        impl Kernel {
            /// Every kernel.
            pub const ALL: &[Kernel] = &[$(Kernel::$kernel),+];

            /// Name in the PTX and in `kernels/list.h`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kernel::$kernel => $name,)+
                }
            }

            /// Threads in a block, fixed in the source.
            pub fn threads(self) -> u32 {
                match self {
                    $(Kernel::$kernel => $threads,)+
                }
            }

            /// Bytes of its argument struct.
            pub const fn argument_bytes(self) -> usize {
                match self {
                    $(Kernel::$kernel => size_of::<$argument>(),)+
                }
            }
        }
    };
}

kernels! {
    /// Rows of a matrix over GF(2^8) times fragments.
    GfMultiply: "gf_multiply", 256 threads, GfMultiply;
    /// Every leaf of a batch of buffers.
    Blake3Leaves: "blake3_leaves", 128 threads, Blake3Leaves;
    /// Joins up to 64 neighbouring chaining values to one.
    Blake3Parents: "blake3_parents", 128 threads, Blake3Parents;
    /// Chunk boundary candidates.
    BoundaryCandidates: "boundary_candidates", 256 threads, BoundaryCandidates;
    /// Coding words of an XOR-schedule code.
    XorRows: "xor_rows", 256 threads, XorRows;
    /// MD5 of messages, one thread each.
    Md5Batch: "md5_batch", 128 threads, Digests;
    /// SHA-1 of messages, one thread each.
    Sha1Batch: "sha1_batch", 128 threads, Digests;
    /// SHA-256 of messages, one thread each.
    Sha256Batch: "sha256_batch", 128 threads, Digests;
    /// Look-up of keys in levels of sorted arrays.
    LookupLevels: "lookup_levels", 256 threads, LookupLevels;
    /// Look-up of hashes in a blocked Bloom filter.
    BloomQuery: "bloom_query", 256 threads, BloomQuery;
    /// Fragments that are not all zeros.
    MarkNonzero: "mark_nonzero", 256 threads, MarkNonzero;
}

/// One kernel to run: blocks in x and y, and its argument as the bytes of the C struct.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    kernel: Kernel,
    grid: [u32; 2],
    argument: Vec<u8>,
}

impl Launch {
    /// `kernel` with at least `threads` threads in x, and `rows` rows of blocks in y. `None` without threads or rows:
    /// there is nothing to compute.
    ///
    /// # Panics
    /// If the argument is not the kernel's, or there are more blocks than a grid holds.
    pub fn new(kernel: Kernel, threads: usize, rows: usize, argument: Vec<u8>) -> Option<Launch> {
        let (expected, got) = (kernel.argument_bytes(), argument.len());
        assert_eq!(got, expected, "argument of {}", kernel.name());
        let blocks =
            u32::try_from(threads.div_ceil(kernel.threads() as usize)).expect("a grid has 2^32 blocks at most");
        let rows = u32::try_from(rows).expect("a grid has 2^32 rows at most");
        (blocks > 0 && rows > 0).then_some(Launch { kernel, grid: [blocks, rows], argument })
    }

    /// The kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Blocks in x and y; each at least 1.
    pub fn grid(&self) -> [u32; 2] {
        self.grid
    }

    /// The argument in words of eight bytes, the alignment of the struct.
    pub(crate) fn argument_words(&self) -> Vec<u64> {
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("structs are whole words"));
        self.argument.chunks(8).map(word).collect()
    }
}

/// Declares a struct that host and kernel share. Fields are written one after the other, so it must not need padding.
macro_rules! shared_structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        #[allow(missing_docs)] // The kernel's source documents the fields.
        pub struct $name { $(pub $field: $type),+ }

        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())+, "no padding between fields");
        const _: () = assert!(size_of::<$name>().is_multiple_of(8), "no padding at the end");

        impl $name {
            /// The bytes of the C struct.
            pub fn to_bytes(self) -> Vec<u8> {
                let mut bytes = Vec::with_capacity(size_of::<$name>());
                $(bytes.extend_from_slice(&self.$field.to_ne_bytes());)+
                bytes
            }
        }
    )+};
}

shared_structs! {
    /// `struct gf_multiply`.
    GfMultiply {
        sources: u64, targets: u64, tables: u64,
        source_stripe: u64, source_column: u64, target_stripe: u64, target_row: u64,
        pieces: u64, stripes: u32, rows: u32, columns: u32, unused: u32,
    }

    /// `struct blake3_leaves`.
    Blake3Leaves { data: u64, buffers: u64, values: u64, buffer_count: u32, leaf_count: u32 }

    /// `struct blake3_buffer`.
    Blake3Buffer { offset: u64, bytes: u64, first_leaf: u32, value: u32 }

    /// `struct blake3_parents`.
    Blake3Parents { values: u64, items: u64, item_count: u32, unused: u32 }

    /// `struct blake3_item`.
    Blake3Item { from: u32, count: u32, to: u32, root: u32 }

    /// `struct boundary_candidates`.
    BoundaryCandidates {
        data: u64, found: u64, any_below: u64, strong_below: u64,
        bytes: u32, context: u32, capacity: u32, above: i32,
    }

    /// `struct xor_rows`.
    XorRows {
        sources: u64, targets: u64, firsts: u64, words: u64, lists: u64,
        source_chunk: u64, target_chunk: u64, fragment: u64,
        stripes: u64, packet: u64, chunks: u32, w: u32,
    }

    /// `struct digest_message`.
    DigestMessage { offset: u64, bytes: u64 }

    /// `struct digests`.
    Digests {
        data: u64, messages: u64, out: u64, step: u64, window: u64, total: u64,
        count: u64, width: u32, unused: u32,
    }

    /// `struct lookup_levels`.
    LookupLevels {
        keys: u64, firsts: u64, queries: u64, found: u64, query_count: u64, level_count: u32, unused: u32,
    }

    /// `struct bloom_query`.
    BloomQuery { blocks: u64, hashes: u64, passes: u64, block_count: u64, query_count: u64 }

    /// `struct mark_nonzero`.
    MarkNonzero { data: u64, flags: u64, pieces: u64, count: u64 }
}

// Each size is that of the C struct on a host and on a GPU with 64-bit pointers; the emulator compares them at every
// launch.
const _: () = assert!(size_of::<GfMultiply>() == 80 && size_of::<XorRows>() == 88);
const _: () = assert!(size_of::<Blake3Leaves>() == 32 && size_of::<Blake3Parents>() == 24);
const _: () = assert!(size_of::<Blake3Buffer>() == 24 && size_of::<Blake3Item>() == 16);
const _: () = assert!(size_of::<BoundaryCandidates>() == 48 && size_of::<MarkNonzero>() == 32);
const _: () = assert!(size_of::<DigestMessage>() == 16 && size_of::<Digests>() == 64);
const _: () = assert!(size_of::<LookupLevels>() == 48 && size_of::<BloomQuery>() == 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_ptx_has_every_kernel_and_no_other() {
        for kernel in Kernel::ALL {
            let declared = format!(".visible .entry {}(", kernel.name());
            assert!(PTX.contains(&declared), "{} is not in kernels.ptx", kernel.name());
            let body = PTX.split(&declared).nth(1).unwrap();
            let threads = format!(".maxntid {}, 1, 1", kernel.threads());
            assert!(body[..body.find('{').unwrap()].contains(&threads), "{}: {threads}", kernel.name());
        }
        assert_eq!(PTX.matches(".visible .entry").count(), Kernel::ALL.len());
        assert!(PTX.contains(".target sm_75"));
    }
}
