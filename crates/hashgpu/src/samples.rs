//! One job of each primitive, for calibration and benchmarks.

use crate::digest::{Function, SEGMENT_BYTES};
use crate::operations::{AskBloom, DigestBatch, FindInLevels, HashWindows, Segmented};
use crate::windows::Windows;
use std::sync::Arc;
use tessera_accel::runtime::{self, Operation, add_sample};

/// A job of each primitive of accel and of this crate on about `bytes` of input, always in the same order: for
/// [`tessera_accel::runtime::Options::samples`]. Leaves out primitives that cannot be so large.
pub fn samples(bytes: usize) -> Vec<Arc<dyn Operation>> {
    let mut samples = runtime::samples(bytes);
    let message = (bytes / 16).clamp(64, SEGMENT_BYTES);
    for function in [Function::Md5, Function::Sha1, Function::Sha256] {
        add_sample(&mut samples, DigestBatch::new(function, &vec![message; bytes / message]));
    }
    add_sample(&mut samples, Segmented::new(Function::Sha1, bytes, message));
    let windows = Windows::new(Function::Md5, 20, 20, 8);
    add_sample(&mut samples, windows.ok().and_then(|windows| HashWindows::new(windows, bytes)));
    let words = bytes / 16;
    add_sample(&mut samples, FindInLevels::new(&[words / 2, words - words / 2], words));
    add_sample(&mut samples, AskBloom::new((bytes / 64).max(1), words));
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::{Levels, Sorted};
    use std::collections::BTreeSet;
    use tessera_accel::runtime::fill_sample;

    /// Calibration measures each primitive of a device exactly once.
    #[test]
    fn each_primitive_has_one_sample_and_look_ups_find_half() {
        let all = samples(16 << 10);
        let names: BTreeSet<&str> = all.iter().map(|sample| sample.primitive()).collect();
        assert_eq!((names.len(), all.len()), (18, 18), "{names:?}");
        assert!(all.iter().all(|sample| sample.input_bytes() > 12 << 10), "{all:?}");

        let sample = all.iter().find(|sample| sample.primitive() == "lookup").unwrap();
        let mut input = vec![0; sample.input_bytes()];
        fill_sample(sample.as_ref(), &mut input);
        let words: Vec<u64> = input.chunks(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap())).collect();
        let (keys, queries) = words.split_at(words.len() / 2);
        let found = Levels::new(vec![Sorted::new(keys).unwrap()]).unwrap().find(queries);
        let found = found.iter().flatten().count();
        assert!((queries.len() / 3..queries.len() * 2 / 3).contains(&found), "{found} of {}", queries.len());
    }
}
