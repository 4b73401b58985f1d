//! The code of a redundancy class, behind one interface for both families.
//!
//! A chunk's data slices may be cut off where the chunk ends; missing bytes count as zeros. Reed–Solomon codes take
//! such slices as they are. Codes of XOR alone compute whole stripes, so this module alone copies and pads short
//! slices.

use crate::device::{ReconstructJob, UpdateJob, VerifyJob};
use crate::erasure::{Code, CodeError, CoderError, FRAGMENT_ALIGN_BYTES, Matrix, fragment_len, slice_of};
use crate::isa::Isa;
use crate::xorcode::{Technique, XorCode, XorCodeError};
use std::sync::Arc;

/// A code of k data and m parity fragments.
#[derive(Debug, Clone)]
pub enum Coder {
    /// Reed–Solomon.
    Rs(Arc<Code>),
    /// XOR alone.
    Xor(Arc<XorCode>),
}

/// A redundancy class's description of its code. It may come from outside and is checked (P14).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Description<'a> {
    /// Family: `rs` or `xor`.
    pub code: &'a str,
    /// Name of the matrix, or of the [`Technique`].
    pub matrix: &'a str,
    /// Data fragments.
    pub k: u32,
    /// Parity fragments.
    pub m: u32,
    /// For `xor`: packets of a stripe.
    pub w: u32,
    /// For `xor`: bytes of a packet.
    pub packet_bytes: u32,
    /// For `xor`: fragment lengths are multiples of this, a stripe.
    pub align_bytes: u32,
}

/// Why a described code cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// Unknown family, perhaps of another release.
    #[error("it is coded by {code:?}, which this release does not know")]
    UnknownCode {
        /// Family in the description.
        code: String,
    },
    /// Not a safe Reed–Solomon code.
    #[error(transparent)]
    Rs(#[from] CodeError),
    /// Not a valid code of XOR alone.
    #[error(transparent)]
    Xor(#[from] XorCodeError),
    /// Packets, stripes and alignment do not fit together, or exceed the limits.
    #[error(
        "{w} packets of {packet_bytes} bytes, aligned to {align_bytes}: a stripe is what is aligned, and at most {} bytes in at most {MOST_W} packets",
        MOST_STRIPE_BYTES
    )]
    Stripe {
        /// Packets of a stripe.
        w: u32,
        /// Bytes of a packet.
        packet_bytes: u32,
        /// Alignment of fragments.
        align_bytes: u32,
    },
}

/// Maximum packets in a stripe of a class: the time to make a code's schedules grows fast with it.
pub const MOST_W: u32 = 31;
/// Largest stripe of a class.
pub const MOST_STRIPE_BYTES: u32 = 256 << 10;

impl Coder {
    /// The code that a class describes.
    ///
    /// # Errors
    /// The family is unknown, the code does not exist, or it exceeds the limits.
    pub fn described(by: &Description<'_>) -> Result<Coder, DescriptionError> {
        let (k, m) = (by.k as usize, by.m as usize);
        match by.code {
            "rs" => {
                let matrix: Matrix = by.matrix.parse()?;
                Ok(Coder::Rs(Arc::new(Code::new(k, m, matrix)?)))
            }
            "xor" => {
                let technique: Technique = by.matrix.parse()?;
                let stripe =
                    by.w.checked_mul(by.packet_bytes).filter(|s| *s == by.align_bytes && *s <= MOST_STRIPE_BYTES);
                if by.w > MOST_W || stripe.is_none() {
                    let Description { w, packet_bytes, align_bytes, .. } = *by;
                    return Err(DescriptionError::Stripe { w, packet_bytes, align_bytes });
                }
                Ok(Coder::Xor(Arc::new(XorCode::new(technique, k, m, by.w as usize, by.packet_bytes as usize)?)))
            }
            other => Err(DescriptionError::UnknownCode { code: other.to_owned() }),
        }
    }

    /// Data fragments.
    pub fn k(&self) -> usize {
        match self {
            Coder::Rs(code) => code.k(),
            Coder::Xor(code) => code.k(),
        }
    }

    /// Parity fragments.
    pub fn m(&self) -> usize {
        match self {
            Coder::Rs(code) => code.m(),
            Coder::Xor(code) => code.m(),
        }
    }

    /// Ranges of fragments that begin and end at multiples of this can be coded alone.
    pub fn step_bytes(&self) -> usize {
        match self {
            Coder::Rs(_) => 1,
            Coder::Xor(code) => code.stripe_bytes(),
        }
    }

    /// Fragment lengths are multiples of this.
    pub fn align_bytes(&self) -> usize {
        match self {
            Coder::Rs(_) => FRAGMENT_ALIGN_BYTES,
            Coder::Xor(code) => code.stripe_bytes(),
        }
    }

    /// Bytes of each fragment of a chunk of `chunk_len` bytes, before the last slices are cut off. If the length
    /// overflows: a value larger than any memory, which calls refuse.
    pub fn fragment_len(&self, chunk_len: usize) -> usize {
        match self {
            Coder::Rs(code) => fragment_len(chunk_len, code.k()),
            Coder::Xor(code) => code.fragment_len(chunk_len).unwrap_or(usize::MAX),
        }
    }

    /// The bytes of a chunk that data fragment `index` holds; shorter than the others at the chunk's end, even empty.
    pub fn data_slice<'a>(&self, chunk: &'a [u8], index: usize) -> &'a [u8] {
        slice_of(chunk, self.fragment_len(chunk.len()), index)
    }

    /// Name of the encoding primitive in calibration and [`crate::Device::takes`].
    pub fn encoding(&self) -> &'static str {
        self.primitive("encode", "xor-encode")
    }

    /// Name of the reconstructing primitive.
    pub(crate) fn reconstruction(&self) -> &'static str {
        self.primitive("reconstruct", "xor-reconstruct")
    }

    /// Name of the primitive that updates parity.
    pub(crate) fn updating(&self) -> &'static str {
        self.primitive("update", "xor-update")
    }

    /// Name of the primitive that verifies parity.
    pub(crate) fn verification(&self) -> &'static str {
        self.primitive("verify", "xor-verify")
    }

    fn primitive(&self, rs: &'static str, xor: &'static str) -> &'static str {
        match self {
            Coder::Rs(_) => rs,
            Coder::Xor(_) => xor,
        }
    }

    /// Fills the m parities of `frag_len` bytes from the k slices, on this thread.
    ///
    /// # Errors
    /// Wrong counts or lengths.
    pub fn encode(&self, data: &[&[u8]], frag_len: usize, parity: &mut [&mut [u8]]) -> Result<(), CoderError> {
        self.encode_on(Isa::best(), data, frag_len, parity)
    }

    pub(crate) fn encode_on(
        &self,
        isa: Isa,
        data: &[&[u8]],
        frag_len: usize,
        parity: &mut [&mut [u8]],
    ) -> Result<(), CoderError> {
        match self {
            Coder::Rs(code) => code.encode_on(isa, data, frag_len, parity),
            Coder::Xor(code) => {
                let mut room = Vec::new();
                code.encode_on(isa, &padded_slices(data, frag_len, &mut room), parity)
            }
        }
    }

    /// Fills `out[i]` with fragment `wanted[i]` (the beginning of it for a cut-off slice) from at least k of the
    /// others, on this thread.
    ///
    /// # Errors
    /// Wrong counts, numbers or lengths, or too few fragments.
    pub fn reconstruct(&self, mut job: ReconstructJob<'_>) -> Result<(), CoderError> {
        self.reconstruct_on(Isa::best(), &mut job)
    }

    pub(crate) fn reconstruct_on(&self, isa: Isa, job: &mut ReconstructJob<'_>) -> Result<(), CoderError> {
        let code = match self {
            Coder::Rs(code) => {
                return code.reconstruct_on(isa, job.frag_len, &job.present, &job.wanted, &mut job.out);
            }
            Coder::Xor(code) => code,
        };
        let frag_len = job.frag_len;
        let (numbers, bytes): (Vec<usize>, Vec<&[u8]>) = job.present.iter().copied().unzip();
        let mut room = Vec::new();
        let present: Vec<(usize, &[u8])> =
            numbers.into_iter().zip(padded_slices(&bytes, frag_len, &mut room)).collect();
        // Whole fragments are computed in place. Cut-off fragments are computed in scratch space, and their beginning
        // is kept.
        let mut whole: Vec<Vec<u8>> =
            job.out.iter().map(|o| vec![0; if o.len() < frag_len { frag_len } else { 0 }]).collect();
        let targets = job.out.iter_mut().zip(&mut whole);
        let mut targets: Vec<&mut [u8]> =
            targets.map(|(o, w)| if w.is_empty() { &mut o[..] } else { &mut w[..] }).collect();
        code.reconstruct_on(isa, &present, &job.wanted, &mut targets)?;
        for (o, w) in job.out.iter_mut().zip(whole).filter(|(_, w)| !w.is_empty()) {
            o.copy_from_slice(&w[..o.len()]);
        }
        Ok(())
    }

    /// Updates parity in place when a data fragment, or a range of it between steps ([`Coder::step_bytes`]), changes.
    /// Slices that the chunk's end cuts off count as zeros beyond it.
    pub(crate) fn update_on(&self, isa: Isa, job: &mut UpdateJob<'_>) -> Result<(), CoderError> {
        let len = job.parity.first().map_or(0, |p| p.len());
        let mut room = Vec::new();
        let both = padded_slices(&[job.old, job.new], len, &mut room);
        match self {
            Coder::Rs(code) => code.update_on(isa, job.index, both[0], both[1], &mut job.parity),
            Coder::Xor(code) => code.update_on(isa, job.index, both[0], both[1], &mut job.parity),
        }
    }

    /// The parity fragments (0..m) that differ from what the data gives.
    pub(crate) fn verify_on(&self, isa: Isa, job: &VerifyJob<'_>) -> Result<Vec<usize>, CoderError> {
        match self {
            Coder::Rs(code) => code.verify_on(isa, &job.data, job.frag_len, &job.parity),
            Coder::Xor(code) => {
                let mut room = Vec::new();
                code.verify_on(isa, &padded_slices(&job.data, job.frag_len, &mut room), &job.parity)
            }
        }
    }
}

impl From<Code> for Coder {
    fn from(code: Code) -> Coder {
        Coder::Rs(Arc::new(code))
    }
}

impl From<XorCode> for Coder {
    fn from(code: XorCode) -> Coder {
        Coder::Xor(Arc::new(code))
    }
}

/// The slices; those shorter than `len` are copied to `room` and padded with zeros.
fn padded_slices<'a>(slices: &[&'a [u8]], len: usize, room: &'a mut Vec<u8>) -> Vec<&'a [u8]> {
    let short = slices.iter().filter(|slice| slice.len() < len).count();
    room.resize(short * len, 0);
    let mut places = room.chunks_exact_mut(len.max(1));
    let fill = |slice: &&'a [u8]| match slice.len() < len {
        true => match places.next() {
            Some(place) => {
                place[..slice.len()].copy_from_slice(slice);
                &*place
            }
            None => slice,
        },
        false => slice,
    };
    slices.iter().map(fill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::EncodeJob;
    use crate::erasure::Matrix;
    use crate::testing::test_bytes;
    use crate::xorcode::Technique;
    use crate::{Cpu, Device};

    fn coders() -> Vec<Coder> {
        let xor = |technique, k, w| Coder::Xor(Arc::new(XorCode::new(technique, k, 2, w, 64).unwrap()));
        vec![
            Coder::Rs(Arc::new(Code::new(4, 2, Matrix::Cauchy1).unwrap())),
            xor(Technique::Liberation, 4, 7),
            xor(Technique::Liberation, 3, 7),
            xor(Technique::BlaumRoth, 3, 4),
        ]
    }

    /// Every family, every loss, lengths around every edge, on this thread and through a device: the same bytes (P10).
    #[test]
    fn chunks_of_any_length_survive_two_losses() {
        let (cpu, emulated) = (Cpu::reference(), crate::Spec::Emulated(1).open(Default::default()).unwrap());
        for coder in coders() {
            let (k, align) = (coder.k(), coder.align_bytes());
            for len in [0, 1, 63, 64, 65, align - 1, align, align + 1, k * align, k * align + 1, 3 * k * align - 5] {
                let chunk = test_bytes(len as u64, len);
                let full = coder.fragment_len(len);
                assert!(full.is_multiple_of(align) && full * k >= len && (full == 0 || (full - align) * k < len));
                let data: Vec<&[u8]> = (0..k).map(|i| coder.data_slice(&chunk, i)).collect();
                assert_eq!(data.concat(), chunk);
                let mut parity = vec![vec![9u8; full]; 2];
                coder.encode(&data, full, &mut parity.iter_mut().map(|p| &mut p[..]).collect::<Vec<_>>()).unwrap();
                for device in [&cpu as &dyn Device, emulated.as_ref()] {
                    let mut again = vec![vec![7u8; full]; 2];
                    let targets = again.iter_mut().map(|p| &mut p[..]).collect();
                    let job = EncodeJob { data: data.clone(), frag_len: full, parity: targets };
                    device.encode(&coder, &mut [job]).unwrap();
                    assert_eq!(again, parity);
                }
                let all: Vec<&[u8]> = data.iter().copied().chain(parity.iter().map(|p| &p[..])).collect();
                for (a, b) in (0..k + 2).flat_map(|a| (a + 1..k + 2).map(move |b| (a, b))) {
                    let present = || (0..k + 2).filter(|i| ![a, b].contains(i)).map(|i| (i, all[i])).collect();
                    let mut targets = [vec![1u8; all[a].len()], vec![1u8; all[b].len()]];
                    for way in 0..3 {
                        let out = targets.iter_mut().map(|r| &mut r[..]).collect();
                        let job = ReconstructJob { frag_len: full, present: present(), wanted: vec![a, b], out };
                        match way {
                            0 => coder.reconstruct(job).unwrap(),
                            1 => cpu.reconstruct(&coder, &mut [job]).unwrap(),
                            _ => emulated.reconstruct(&coder, &mut [job]).unwrap(),
                        }
                        assert_eq!(
                            (&targets[0][..], &targets[1][..]),
                            (all[a], all[b]),
                            "{coder:?} {len} {a} {b} {way}"
                        );
                        targets.iter_mut().for_each(|r| r.fill(3));
                    }
                }
            }
        }
    }

    /// Every family, lengths around every edge, through devices: updated parity is that of the new data, and wrong
    /// parity is named (P10).
    #[test]
    fn parity_follows_its_data_and_is_checked_on_every_device() {
        let (cpu, emulated) = (Cpu::reference(), crate::Spec::Emulated(1).open(Default::default()).unwrap());
        for coder in coders() {
            let (k, align) = (coder.k(), coder.align_bytes());
            for len in [0, 1, align, k * align + 1, 3 * k * align - 5] {
                let chunk = test_bytes(len as u64, len);
                let full = coder.fragment_len(len);
                let encoded = |chunk: &[u8]| {
                    let data: Vec<&[u8]> = (0..k).map(|i| coder.data_slice(chunk, i)).collect();
                    let mut parity = vec![vec![0u8; full]; 2];
                    coder.encode(&data, full, &mut parity.iter_mut().map(|p| &mut p[..]).collect::<Vec<_>>()).unwrap();
                    parity
                };
                for (index, device) in (0..k).zip([&cpu as &dyn Device, emulated.as_ref()].into_iter().cycle()) {
                    let old = coder.data_slice(&chunk, index);
                    let mut changed = chunk.clone();
                    let start = (index * full).min(len);
                    changed[start..start + old.len()].iter_mut().for_each(|b| *b = b.wrapping_mul(7) ^ 0x5a);
                    let new = coder.data_slice(&changed, index);
                    let mut parity = encoded(&chunk);
                    let targets = parity.iter_mut().map(|p| &mut p[..]).collect();
                    device.update(&coder, &mut [UpdateJob { index, old, new, parity: targets }]).unwrap();
                    assert_eq!(parity, encoded(&changed), "{coder:?} {len} {index}");

                    let data: Vec<&[u8]> = (0..k).map(|i| coder.data_slice(&changed, i)).collect();
                    let check = |parity: &[Vec<u8>]| {
                        let parity = parity.iter().map(|p| &p[..]).collect();
                        device
                            .verify(&coder, &[VerifyJob { data: data.clone(), frag_len: full, parity }])
                            .unwrap()
                            .concat()
                    };
                    assert_eq!(check(&parity), [0usize; 0]);
                    if let Some(last) = parity[1].last_mut() {
                        *last ^= 1;
                        assert_eq!(check(&parity), [1]);
                    }
                }
            }
            let mut short = vec![vec![0u8; coder.step_bytes()]; 1];
            let parity = short.iter_mut().map(|p| &mut p[..]).collect();
            let job = UpdateJob { index: 0, old: &[], new: &[], parity };
            assert!(emulated.update(&coder, &mut [job]).is_err(), "one parity of two");
        }
        let used = emulated.usage_by_device();
        for primitive in ["update", "verify", "xor-update", "xor-verify"] {
            assert!(used[0].1.of(primitive).jobs > 0, "{primitive}: {used:?}");
        }
    }

    /// A range that begins and ends at steps is decoded from the same range of the others.
    #[test]
    fn ranges_at_steps_are_decoded_alone() {
        for coder in coders() {
            let (k, step) = (coder.k(), coder.step_bytes());
            let full = coder.align_bytes() * 4;
            let chunk = test_bytes(5, full * k);
            let data: Vec<&[u8]> = (0..k).map(|i| coder.data_slice(&chunk, i)).collect();
            let mut parity = vec![vec![0u8; full]; 2];
            coder.encode(&data, full, &mut parity.iter_mut().map(|p| &mut p[..]).collect::<Vec<_>>()).unwrap();
            let range = step * 2..step * 3;
            let present = (1..k).map(|i| (i, &data[i][range.clone()])).chain([(k + 1, &parity[1][range.clone()])]);
            let mut out = vec![0u8; step];
            let (present, out_room) = (present.collect(), vec![&mut out[..]]);
            coder.reconstruct(ReconstructJob { frag_len: step, present, wanted: vec![0], out: out_room }).unwrap();
            assert_eq!(out, data[0][range]);
        }
    }

    /// P14: a class's description from outside is built only if it is sound.
    #[test]
    fn descriptions_that_make_no_sense_are_refused() {
        let rs = Description { code: "rs", matrix: "cauchy1", k: 4, m: 2, ..Default::default() };
        let xor =
            Description { code: "xor", matrix: "liberation", k: 4, m: 2, w: 7, packet_bytes: 1024, align_bytes: 7168 };
        assert!(matches!(Coder::described(&rs), Ok(Coder::Rs(_))));
        assert!(matches!(Coder::described(&xor), Ok(Coder::Xor(_))));
        let wrong = [
            Description { code: "magic", ..rs },
            Description { matrix: "liberation", ..rs },
            Description { matrix: "cauchy1", ..xor },
            Description { k: 0, ..rs },
            Description { k: 200, m: 60, ..rs },
            Description { k: u32::MAX, m: u32::MAX, ..rs },
            Description { k: 8, ..xor },
            Description { k: 0, ..xor },
            Description { m: 3, ..xor },
            Description { w: 8, align_bytes: 8192, ..xor },
            Description { w: 0, align_bytes: 0, ..xor },
            Description { w: 37, align_bytes: 37 * 1024, ..xor },
            Description { packet_bytes: 1020, align_bytes: 7140, ..xor },
            Description { packet_bytes: 0, align_bytes: 0, ..xor },
            Description { align_bytes: 64, ..xor },
            Description { packet_bytes: 1 << 20, align_bytes: 7 << 20, ..xor },
            Description { packet_bytes: u32::MAX, align_bytes: u32::MAX, ..xor },
        ];
        for description in wrong {
            let error = Coder::described(&description).expect_err(&format!("{description:?}"));
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn calls_that_cannot_be_are_typed_errors() {
        for coder in coders() {
            let full = coder.align_bytes();
            let bytes = vec![0u8; full + 1];
            let data: Vec<&[u8]> = (0..coder.k()).map(|_| &bytes[..full + 1]).collect();
            let mut parity = vec![vec![0u8; full]; 2];
            let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
            assert!(coder.encode(&data, full, &mut targets).is_err(), "slices longer than fragments");
            let mut out = vec![0u8; full];
            let job = ReconstructJob {
                frag_len: full,
                present: vec![(1, &bytes[..full])],
                wanted: vec![0],
                out: vec![&mut out],
            };
            assert!(coder.reconstruct(job).is_err(), "too few");
        }
    }
}
