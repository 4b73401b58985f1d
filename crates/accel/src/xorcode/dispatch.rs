//! Fragments as programs see them, and the choice of who runs a program.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::frame;
use super::program::Program;
use super::reference;
use crate::isa::{Isa, Level};

/// A fragment's part in a run.
pub enum Slot<'a> {
    /// Neither read nor written.
    Absent,
    /// Read.
    In(&'a [u8]),
    /// Written; what has been written may be read again.
    Out(&'a mut [u8]),
}

impl Slot<'_> {
    /// The bytes; none if absent.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Slot::Absent => &[],
            Slot::In(bytes) => bytes,
            Slot::Out(bytes) => bytes,
        }
    }
}

/// Runs `program` on all stripes of `slots`, one for each fragment of the code.
///
/// # Panics
/// If a fragment that the program names is absent, has not `len` bytes, or is written but not `Out`, or `len` is no
/// whole number of stripes: callers have checked what comes from outside.
pub fn run(isa: Isa, program: &Program, w: usize, packet_bytes: usize, slots: &mut [Slot<'_>], len: usize) {
    assert!(packet_bytes > 0 && len.is_multiple_of(w * packet_bytes));
    for step in program.steps() {
        assert!(usize::from(step.target.packet) < w && !step.sources.is_empty());
        assert!(matches!(&slots[usize::from(step.target.fragment)], Slot::Out(out) if out.len() == len));
        for source in &step.sources {
            assert!(usize::from(source.packet) < w && slots[usize::from(source.fragment)].bytes().len() == len);
        }
    }
    match isa.level() {
        Level::Reference | Level::Portable => reference::run(program, w, packet_bytes, slots, len),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => frame::run_neon(isa, program, w, packet_bytes, slots, len),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => frame::run_avx2(isa, program, w, packet_bytes, slots, len),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Gfni => frame::run_avx512(isa, program, w, packet_bytes, slots, len),
    }
}
