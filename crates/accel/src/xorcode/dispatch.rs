//! Fragments as programs see them, and the choice of the instruction set that runs a program.

use super::program::Program;
use super::{frame, reference};
use crate::isa::{Isa, Level};

/// A fragment's role in a run.
pub enum Slot<'a> {
    /// Neither read nor written.
    Absent,
    /// Read.
    In(&'a [u8]),
    /// Written; later steps may read the written bytes.
    Out(&'a mut [u8]),
}

impl Slot<'_> {
    /// The bytes; empty if absent.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Slot::Absent => &[],
            Slot::In(bytes) => bytes,
            Slot::Out(bytes) => bytes,
        }
    }
}

/// Runs `program` on all stripes of `slots`, one slot for each fragment of the code.
///
/// # Panics
/// If a fragment that the program names is absent, does not have `len` bytes, or is written but not `Out`, or if `len`
/// is not a whole number of stripes. Callers have checked outside input.
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
        #[allow(unreachable_patterns)] // On CPUs without vectors.
        _ => frame::run(isa, program, w, packet_bytes, slots, len),
    }
}
