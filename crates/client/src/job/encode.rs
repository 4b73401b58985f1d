//! Fragments of a chunk: data fragments are slices of it, parity is computed, all get a checksum.

use crate::class::Class;
use bytes::Bytes;
use std::sync::Arc;
use tessera_accel::checksum::{crc32c, crc32c_append};
use tessera_accel::device::Work;
use tessera_accel::{Device, EncodeJob, device};
use tessera_net::BufferPool;

/// Make fragments `wanted` of the chunk `data`.
#[derive(Debug)]
pub struct Encode {
    /// Its class.
    pub class: Arc<Class>,
    /// The chunk.
    pub data: Bytes,
    /// Fragment numbers, below the class's count.
    pub wanted: Vec<u32>,
}

/// The fragments, in the order wanted.
#[derive(Debug)]
pub struct Encoded {
    /// The fragments.
    pub fragments: Vec<Fragment>,
}

/// One fragment, ready to be sent.
#[derive(Debug, Clone)]
pub struct Fragment {
    /// Its number.
    pub number: u32,
    /// Its bytes.
    pub bytes: Bytes,
    /// crc32c of them.
    pub crc32c: u32,
}

impl Encode {
    pub(super) fn run(self, pool: &BufferPool) -> Encoded {
        let class = &self.class;
        let full = class.full_len(self.data.len() as u64);
        let coded = self.wanted.iter().any(|number| !class.is_plain(*number));
        let (parity, sums) = if coded { parity_and_sums(class, &self.data, pool) } else { Default::default() };
        // Copies are all the same bytes: one checksum serves them all.
        let whole_crc = class.code().is_none().then(|| crc32c(&self.data));
        let fragments = self.wanted.iter().map(|&number| {
            let bytes = match class.is_plain(number) {
                true => class.plain(&self.data, number),
                false => {
                    let row = (number - class.needed()) as usize;
                    parity.slice(row * full..(row + 1) * full)
                }
            };
            // Of a copy beside coded pieces the sum is known of its first slice only.
            let sum = sums.get(number as usize).copied().filter(|_| !class.info.is_copy(number));
            let known = whole_crc.or(sum);
            let crc32c = known.unwrap_or_else(|| crc32c(&bytes));
            Fragment { number, bytes, crc32c }
        });
        Encoded { fragments: fragments.collect() }
    }
}

const SHAPES: &str = "shapes follow from the class";

/// Bytes of all fragments together that are coded and then summed while they are still in the cache.
const STRIPE_BYTES: usize = 192 << 10;

/// The m parity fragments of `chunk`, back to back; empty for copies.
pub(super) fn parity(class: &Class, chunk: &Bytes, pool: &BufferPool) -> Bytes {
    parity_and_sums(class, chunk, pool).0
}

/// The m parity fragments of `chunk`, back to back, and the crc32c of all the code's fragments; nothing for copies.
fn parity_and_sums(class: &Class, chunk: &Bytes, pool: &BufferPool) -> (Bytes, Vec<u32>) {
    parity_and_sums_on(device(), class, chunk, pool)
}

/// The CPU goes through the chunk once, a stripe of it at a time: memory is slower than both computations. Another
/// device gets the chunk whole.
fn parity_and_sums_on(device: &dyn Device, class: &Class, chunk: &Bytes, pool: &BufferPool) -> (Bytes, Vec<u32>) {
    let Some(code) = class.code() else { return Default::default() };
    let full = class.full_len(chunk.len() as u64);
    if full == 0 {
        return Default::default();
    }
    let mut room = pool.get(full * code.m());
    let data: Vec<&[u8]> = (0..class.needed()).map(|i| &chunk[class.slice_range(chunk.len() as u64, i)]).collect();
    let mut rows: Vec<&mut [u8]> = room.chunks_exact_mut(full).collect();
    if device.takes(code.encoding(), chunk.len()) {
        let mut sums: Vec<u32> = data.iter().map(|d| crc32c(d)).collect();
        code.encode_on(device, EncodeJob { data, frag_len: full, parity: rows }).expect(SHAPES);
        sums.extend(room.chunks_exact(full).map(crc32c));
        return (room.freeze(), sums);
    }
    device.note("encode", Work { jobs: 1, bytes: chunk.len() as u64 });
    let mut sums = vec![0; data.len() + rows.len()];
    let step = (STRIPE_BYTES / sums.len()).next_multiple_of(code.align_bytes()).min(full);
    for start in (0..full).step_by(step) {
        let end = (start + step).min(full);
        let data: Vec<&[u8]> = data.iter().map(|d| &d[start.min(d.len())..end.min(d.len())]).collect();
        let mut rows: Vec<&mut [u8]> = rows.iter_mut().map(|row| &mut row[start..end]).collect();
        code.encode(&data, end - start, &mut rows).expect(SHAPES);
        let pieces = data.into_iter().chain(rows.into_iter().map(|row| &*row));
        sums.iter_mut().zip(pieces).for_each(|(sum, piece)| *sum = crc32c_append(*sum, piece));
    }
    (room.freeze(), sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::tests::class;

    /// P10: a device that takes whole chunks gives the bytes and checksums that the CPU gives stripe by stripe.
    #[test]
    fn another_device_gives_the_same_fragments() {
        let (pool, cpu) = (BufferPool::new(1 << 20), tessera_accel::Cpu::new());
        let emulated = tessera_accel::Spec::Emulated(2).open(Default::default()).unwrap();
        for (spec, len) in [
            ("ec:4+2", 0),
            ("ec:4+2", 1),
            ("ec:4+2", 60_003),
            ("copy+ec:4+2", 50_000),
            ("raid6:4+2", 40_000),
            ("replica:3", 100),
        ] {
            let (class, data): (_, Vec<u8>) = (class(spec), (0..len).map(|i: usize| (i * i % 241) as u8).collect());
            let chunk = data.into();
            let expected = parity_and_sums_on(&cpu, &class, &chunk, &pool);
            assert_eq!(parity_and_sums_on(emulated.as_ref(), &class, &chunk, &pool), expected, "{spec} {len}");
        }
        assert_eq!(cpu.usage().of("encode").bytes, 150_004);
        let on_devices = emulated.usage_by_device();
        let jobs = on_devices
            .iter()
            .filter(|(name, _)| name.starts_with("emulated"))
            .map(|(_, u)| u.of("encode").jobs + u.of("xor-encode").jobs);
        assert_eq!(jobs.sum::<u64>(), 4);
    }

    /// Coding stripe by stripe gives what coding at once gives, and every checksum is that of its fragment (P2, P10).
    #[test]
    fn stripes_are_seamless() {
        let pool = BufferPool::new(1 << 20);
        for (spec, len) in [
            ("ec:4+2", 1),
            ("ec:4+2", 1_000_003),
            ("copy+ec:4+2", 1_000_003),
            ("copy+ec:4+2", 3),
            ("raid6:4+2", 1_000_003),
            ("raid6:4+2", 5),
            ("raid6:3+2", 100_000),
            ("ec:10+4", 3_000_000),
            ("ec:2+1", 98_305),
            ("ec:200+55", 4_000_001),
        ] {
            let (class, data): (_, Vec<u8>) = (class(spec), (0..len).map(|i: usize| (i * i % 253) as u8).collect());
            let code = class.code().unwrap();
            let full = code.fragment_len(len);
            let mut rows = vec![vec![0; full]; code.m()];
            let plain: Vec<&[u8]> =
                (0..code.k()).map(|i| &data[(i * full).min(len)..((i + 1) * full).min(len)]).collect();
            let mut out: Vec<&mut [u8]> = rows.iter_mut().map(|r| &mut r[..]).collect();
            code.encode(&plain, full, &mut out).unwrap();
            let wanted = (0..class.fragments()).collect();
            let encoded = Encode { class: class.clone(), data: data.clone().into(), wanted }.run(&pool);
            let mut plain = plain;
            if spec.starts_with("copy") {
                plain[0] = &data;
            }
            let expected = plain.into_iter().chain(rows.iter().map(|r| &r[..]));
            assert_eq!(encoded.fragments.len(), code.k() + code.m());
            assert_eq!(device().usage_by_device().len(), 1, "the CPU alone");
            for (fragment, expected) in encoded.fragments.iter().zip(expected) {
                assert!(fragment.bytes == expected, "{spec} {len} {}", fragment.number);
                assert_eq!(fragment.crc32c, crc32c(expected));
            }
        }
    }
}
