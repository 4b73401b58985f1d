//! The definition, packet by packet, which every schedule and every instruction set must equal (P10). It runs
//! everywhere.

use super::dispatch::Slot;
use super::program::Program;

/// Runs `program` on every stripe: each target packet becomes the XOR of its sources.
pub fn run(program: &Program, w: usize, packet_bytes: usize, slots: &mut [Slot<'_>], len: usize) {
    let mut sum = vec![0u8; packet_bytes];
    for start in (0..len).step_by(w * packet_bytes) {
        let range = |packet: u8| {
            let at = start + usize::from(packet) * packet_bytes;
            at..at + packet_bytes
        };
        for step in program.steps() {
            sum.fill(0);
            for word in &step.sources {
                let packet = &slots[usize::from(word.fragment)].bytes()[range(word.packet)];
                sum.iter_mut().zip(packet).for_each(|(sum, x)| *sum ^= x);
            }
            if let Slot::Out(out) = &mut slots[usize::from(step.target.fragment)] {
                out[range(step.target.packet)].copy_from_slice(&sum);
            }
        }
    }
}
