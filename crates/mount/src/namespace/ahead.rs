//! Which names of a directory are looked up next. As with the bytes of a file, whoever goes through them in their order goes on: the manager
//! is asked for the following names along with one of them.

use super::entry_cache::NameRef;
use std::collections::HashMap;

/// A run ends if the next name is not asked for within this time, ns.
const RUN_NS: i64 = 1_000_000_000;
/// Directories whose runs are remembered.
const MAX_RUNS: usize = 256;
/// Names asked for along with the third name of a run; four times as many with each further one.
const FIRST_AHEAD: u32 = 16;
const MAX_AHEAD: u32 = 256;

#[derive(Debug)]
struct Run {
    last: Vec<u8>,
    at_ns: i64,
    names: u32,
    ahead: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct LookAhead(HashMap<u64, Run>);

impl LookAhead {
    /// The manager is about to be asked for a name. Returns how many of the names behind it to ask for.
    pub fn asks(&mut self, now_ns: i64, (directory, name): NameRef<'_>) -> u32 {
        if self.0.len() >= MAX_RUNS && !self.0.contains_key(&directory) {
            self.0.retain(|_, run| now_ns.saturating_sub(run.at_ns) < RUN_NS);
            if self.0.len() >= MAX_RUNS {
                self.0.clear();
            }
        }
        let goes_on = |run: &&mut Run| now_ns.saturating_sub(run.at_ns) < RUN_NS && *run.last < *name;
        let (names, ahead) = match self.0.get_mut(&directory).filter(goes_on) {
            // Two names that are looked up at random are in order half of the time; three seldom are.
            Some(run) if run.names < 2 => (run.names + 1, 0),
            Some(run) => (run.names, (run.ahead * 4).clamp(FIRST_AHEAD, MAX_AHEAD)),
            None => (1, 0),
        };
        self.0.insert(directory, Run { last: name.to_vec(), at_ns: now_ns, names, ahead });
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_and_more_is_asked_for_along_a_run() {
        let mut ahead = LookAhead::default();
        let mut asked = |at_ms: i64, directory, name: &str| ahead.asks(at_ms * 1_000_000, (directory, name.as_bytes()));
        let run = ["a", "b", "x", "xa", "y"].map(|name| asked(0, 7, name));
        assert_eq!(run, [0, 0, 16, 64, 256]);
        assert_eq!((asked(0, 8, "z"), asked(0, 7, "c")), (0, 0), "another directory, and an earlier name");
        assert_eq!(["d", "e", "f"].map(|name| asked(0, 7, name)), [0, 16, 64]);
        assert_eq!((asked(1_000, 7, "g"), asked(1_999, 7, "h"), asked(2_998, 7, "i")), (0, 0, 16));
    }

    #[test]
    fn runs_are_bounded() {
        let mut ahead = LookAhead::default();
        for directory in 0..10 * MAX_RUNS as u64 {
            ahead.asks(0, (directory, b"a"));
            assert!(ahead.0.len() <= MAX_RUNS);
        }
    }
}
