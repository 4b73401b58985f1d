//! `tessera accel boundaries`.

use super::{PIECE_BYTES, open_file, read_more};
use crate::exit::Outcome;
use crate::term::Out;
use serde_json::json;
use std::path::{Path, PathBuf};
use tessera_accel::Accelerated;
use tessera_accel::boundaries::{Cutter, Rule};
use tessera_policy::Chunking;

pub fn boundaries(chunking: Chunking, files: &[PathBuf], device: &Accelerated, out: Out) -> Outcome {
    let rule = rule(chunking)?;
    for path in files {
        let mut start = 0;
        cuts(device, rule, path, &mut |end: u64| {
            let (offset, length, name) = (start, end - start, path.display().to_string());
            start = end;
            let line = format!("{offset:>14} {length:>9}  {name}");
            out.result(&json!({"file": name, "offset": offset, "bytes": length}), line)
        })?;
    }
    Ok(())
}

fn rule(chunking: Chunking) -> Outcome<Rule> {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    Ok(match chunking {
        Chunking::Fixed { size_bytes } => Rule::fixed(size(size_bytes))?,
        Chunking::Cdc { min_bytes, max_bytes } => Rule::cdc(size(min_bytes), size(max_bytes))?,
        Chunking::Cbch { window_bytes, low_bits, advance_bytes } => {
            Rule::cbch(size(window_bytes), low_bits, size(advance_bytes))?
        }
    })
}

/// Calls `cut` with the end of each chunk of a file. The device finds the candidates of one piece, then the CPU walks
/// them.
fn cuts(device: &Accelerated, rule: Rule, path: &Path, cut: &mut dyn FnMut(u64) -> Outcome) -> Outcome {
    let mut file = open_file(path)?;
    let mut cutter = Cutter::new(rule);
    let (mut piece, mut ends) = (Vec::new(), Vec::new());
    while read_more(&mut file, path, PIECE_BYTES, &mut piece)? > 0 {
        cutter.feed_on(device, &piece, &mut ends);
        ends.drain(..).try_for_each(&mut *cut)?;
        piece.clear();
    }
    cutter.finish().map_or(Ok(()), cut)
}
