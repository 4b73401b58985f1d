//! Cut a stream by its content, insert a few bytes, and see that almost all chunks stay the same.

use std::collections::HashSet;
use tessera_accel::boundaries::{Cutter, ParamsError, Rule};
use tessera_accel::hash::{Hash, chunk_hash};

fn names(rule: Rule, stream: &[u8]) -> Vec<Hash> {
    let (mut cutter, mut cuts) = (Cutter::new(rule), Vec::new());
    // Buffers of any size: the cuts depend on the stream alone.
    stream.chunks(100_000).for_each(|buffer| cutter.feed(buffer, &mut cuts));
    cuts.extend(cutter.finish());
    let mut start = 0;
    cuts.into_iter()
        .map(|end| {
            let name = chunk_hash(&stream[start..end as usize]);
            start = end as usize;
            name
        })
        .collect()
}

fn main() -> Result<(), ParamsError> {
    let rule = Rule::cdc(16 << 10, 256 << 10)?;
    let mut state = 1u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    let stream: Vec<u8> = noise.take(8 << 20).collect();
    let mut edited = stream.clone();
    edited.splice(3_000_000..3_000_000, *b"a few more bytes");

    let (before, after) = (names(rule, &stream), names(rule, &edited));
    let known: HashSet<_> = before.iter().collect();
    let same = after.iter().filter(|name| known.contains(name)).count();
    println!("{} chunks, mean target {} bytes", before.len(), rule.mean_bytes());
    println!("after an insertion {same} of {} chunks are known already", after.len());
    Ok(())
}
