//! Makes the fragments of a chunk: slices are the chunk's own bytes, parity is computed, each gets a checksum.

use crate::Fragment;
use crate::class::Class;
use crate::layout::ClassLayout;
use bytes::Bytes;
use tessera_accel::checksum::{crc32c, crc32c_append};
use tessera_accel::device::Work;
use tessera_accel::{Device, EncodeJob, ReconstructJob, device};
use tessera_net::BufferPool;

const SHAPES: &str = "shapes follow from the class";
const WRONG_LENGTH: &str = "the bytes do not have the length that the class gives fragment";

/// Bytes of all fragments together that are coded at once, then checksummed while they are still in the cache.
const STRIPE_BYTES: usize = 192 << 10;

/// The fragments `wanted` of `chunk`, in this order. Takes memory from `pool`.
pub fn encode(class: &Class, chunk: &Bytes, wanted: &[u32], pool: &BufferPool) -> Vec<Fragment> {
    let chunk_len = chunk.len() as u64;
    let coded = wanted.iter().any(|number| !class.is_plain(*number));
    let (parity, sums) = if coded { parity_and_sums(device(), class, chunk, pool) } else { Default::default() };
    // Copies are all the same bytes: one checksum serves all.
    let whole_crc = class.coder().is_none().then(|| crc32c(chunk));
    let make = |&number: &u32| {
        let bytes = match class.is_plain(number) {
            true => class.plain(chunk, number),
            false => {
                let (row, full) = ((number - class.k) as usize, class.full_len(chunk_len));
                parity.slice(row * full..(row + 1) * full)
            }
        };
        assert_eq!(class.fragment_bytes(chunk_len, number), Some(bytes.len() as u64), "{WRONG_LENGTH} {number}");
        // For a copy in a coded class, the computed sum covers its first slice only.
        let sum = sums.get(number as usize).copied().filter(|_| !class.is_copy(number));
        let crc32c = whole_crc.or(sum).unwrap_or_else(|| crc32c(&bytes));
        Fragment { number, bytes, crc32c }
    };
    wanted.iter().map(make).collect()
}

/// Fragment `number` of `chunk`, without its checksum. The class has such a fragment.
pub fn fragment(class: &Class, chunk: &Bytes, number: u32, pool: &BufferPool) -> Bytes {
    let chunk_len = chunk.len() as u64;
    let bytes = match (class.is_plain(number), class.coder()) {
        (true, _) | (_, None) => class.plain(chunk, number),
        (false, Some(coder)) => {
            let frag_len = class.full_len(chunk_len);
            let mut buffer = pool.get(frag_len);
            let present = (0..class.k).map(|i| (i as usize, &chunk[class.slice_range(chunk_len, i)])).collect();
            let job = ReconstructJob { frag_len, present, wanted: vec![number as usize], out: vec![&mut buffer] };
            device().reconstruct(coder, &mut [job]).expect(SHAPES);
            buffer.freeze()
        }
    };
    assert_eq!(class.fragment_bytes(chunk_len, number), Some(bytes.len() as u64), "{WRONG_LENGTH} {number}");
    bytes
}

/// The m parity fragments of `chunk`, back to back, and the crc32c of all the code's fragments; nothing for copies.
///
/// The CPU goes through the chunk once, stripe by stripe: memory is slower than both computations. Another device gets
/// the whole chunk.
fn parity_and_sums(device: &dyn Device, class: &Class, chunk: &Bytes, pool: &BufferPool) -> (Bytes, Vec<u32>) {
    let Some(coder) = class.coder() else { return Default::default() };
    let full = class.full_len(chunk.len() as u64);
    if full == 0 {
        return Default::default();
    }
    let mut buffer = pool.get(full * coder.m());
    let data: Vec<&[u8]> = (0..class.k).map(|i| &chunk[class.slice_range(chunk.len() as u64, i)]).collect();
    let mut rows: Vec<&mut [u8]> = buffer.chunks_exact_mut(full).collect();
    if device.takes(coder.encoding(), chunk.len()) {
        let mut sums: Vec<u32> = data.iter().map(|d| crc32c(d)).collect();
        device.encode(coder, &mut [EncodeJob { data, frag_len: full, parity: rows }]).expect(SHAPES);
        sums.extend(buffer.chunks_exact(full).map(crc32c));
        return (buffer.freeze(), sums);
    }
    device.note("encode", Work { jobs: 1, bytes: chunk.len() as u64 });
    assert_eq!(data.iter().map(|slice| slice.len()).sum::<usize>(), chunk.len(), "slices are the whole chunk");
    let mut sums = vec![0; data.len() + rows.len()];
    let step = (STRIPE_BYTES / sums.len()).next_multiple_of(coder.align_bytes()).min(full);
    for start in (0..full).step_by(step) {
        let end = (start + step).min(full);
        let data: Vec<&[u8]> = data.iter().map(|d| &d[start.min(d.len())..end.min(d.len())]).collect();
        let mut rows: Vec<&mut [u8]> = rows.iter_mut().map(|row| &mut row[start..end]).collect();
        coder.encode(&data, end - start, &mut rows).expect(SHAPES);
        let pieces = data.into_iter().chain(rows.into_iter().map(|row| &*row));
        sums.iter_mut().zip(pieces).for_each(|(sum, piece)| *sum = crc32c_append(*sum, piece));
    }
    (buffer.freeze(), sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::tests::class;

    /// P10: a device that takes whole chunks gives the same bytes and checksums as the CPU stripe by stripe.
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
            let expected = parity_and_sums(&cpu, &class, &chunk, &pool);
            assert_eq!(parity_and_sums(emulated.as_ref(), &class, &chunk, &pool), expected, "{spec} {len}");
        }
        assert_eq!(cpu.usage().of("encode").bytes, 150_004);
        let on_devices = emulated.usage_by_device();
        let jobs = on_devices
            .iter()
            .filter(|(name, _)| name.starts_with("emulated"))
            .map(|(_, u)| u.of("encode").jobs + u.of("xor-encode").jobs);
        assert_eq!(jobs.sum::<u64>(), 4);
    }

    /// Coding stripe by stripe gives the same bytes as coding at once, and every checksum is its fragment's (P2, P10).
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
            let code = class.coder().unwrap();
            let full = class.full_len(len as u64);
            let mut rows = vec![vec![0; full]; code.m()];
            let plain: Vec<&[u8]> =
                (0..code.k()).map(|i| &data[(i * full).min(len)..((i + 1) * full).min(len)]).collect();
            let mut out: Vec<&mut [u8]> = rows.iter_mut().map(|r| &mut r[..]).collect();
            code.encode(&plain, full, &mut out).unwrap();
            let wanted: Vec<u32> = (0..class.fragments()).collect();
            let encoded = encode(&class, &data.clone().into(), &wanted, &pool);
            let mut plain = plain;
            if spec.starts_with("copy") {
                plain[0] = &data;
            }
            let expected = plain.into_iter().chain(rows.iter().map(|r| &r[..]));
            assert_eq!(encoded.len(), code.k() + code.m());
            assert_eq!(device().usage_by_device().len(), 1, "the CPU alone");
            for (fragment, expected) in encoded.iter().zip(expected) {
                assert!(fragment.bytes == expected, "{spec} {len} {}", fragment.number);
                assert_eq!(fragment.crc32c, crc32c(expected));
            }
        }
    }
}
