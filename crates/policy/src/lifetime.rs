//! Automatic deletion: the values of the hint `lifetime`, and checkpoints that a newer time step makes obsolete.
//!
//! Sources: stdchk (dissertation, chapter 3): lifetimes of checkpoint directories, and its naming convention `A.Ni.Tj`,
//! the image of process i of application A at time step j.

use crate::size::parse_digits;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Seconds in the units of durations, the longest first.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];
/// Longest purge delay, in seconds.
const MAX_PURGE_S: u64 = 10_000 * 86_400;

/// Which versions stay when a new one is committed, and how long the file stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// All.
    Keep,
    /// The newest `versions`.
    Replace {
        /// At least 1.
        versions: u64,
    },
    /// The newest, until the file is purged this long after its last write.
    Purge {
        /// In seconds, at least 1.
        after_s: u64,
    },
}

impl Lifetime {
    pub(crate) fn parse(value: &str) -> Result<Self, String> {
        match value.split_once(':') {
            None if value == "keep" => Ok(Lifetime::Keep),
            None if value == "replace" => Ok(Lifetime::Replace { versions: 1 }),
            Some(("replace", n)) => match n.parse() {
                Ok(versions @ 1..) => Ok(Lifetime::Replace { versions }),
                _ => Err(format!("{n:?} is not a number from 1 on")),
            },
            Some(("purge", duration)) => seconds(duration).map(|after_s| Lifetime::Purge { after_s }),
            _ => Err("not a lifetime".into()),
        }
    }

    /// How many versions stay; `None`: all.
    pub fn versions_kept(self) -> Option<u64> {
        match self {
            Lifetime::Keep => None,
            Lifetime::Replace { versions } => Some(versions),
            Lifetime::Purge { .. } => Some(1),
        }
    }
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Lifetime::Keep => f.write_str("keep"),
            Lifetime::Replace { versions } => write!(f, "replace:{versions}"),
            Lifetime::Purge { after_s } => {
                let exact = UNITS.into_iter().find(|(_, unit_s)| after_s.is_multiple_of(*unit_s));
                let (unit, unit_s) = exact.unwrap_or(('s', 1));
                write!(f, "purge:{}{unit}", after_s / unit_s)
            }
        }
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    let why = || format!("{text:?} is not a duration from 1s to 10000d; write 90s, 10m, 12h or 7d");
    let (number, unit_s) =
        UNITS.into_iter().find_map(|(unit, unit_s)| Some((text.strip_suffix(unit)?, unit_s))).ok_or_else(why)?;
    let seconds = parse_digits(number).and_then(|number| number.checked_mul(unit_s));
    seconds.filter(|s| (1..=MAX_PURGE_S).contains(s)).ok_or_else(why)
}

/// The name of a checkpoint image: `A.Ni.Tj`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepName<'a> {
    /// The application.
    pub application: &'a [u8],
    /// The process's number.
    pub process: u64,
    /// The time step.
    pub step: u64,
}

impl<'a> StepName<'a> {
    /// Parses a file name; `None` if it does not follow the convention.
    pub fn parse(name: &'a [u8]) -> Option<StepName<'a>> {
        let (rest, step) = numbered(name, b".T")?;
        let (application, process) = numbered(rest, b".N")?;
        (!application.is_empty()).then_some(StepName { application, process, step })
    }
}

/// The text before the last `mark`, and the decimal number after it.
fn numbered<'a>(text: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], u64)> {
    let at = text.windows(mark.len()).rposition(|window| window == mark)?;
    let digits = std::str::from_utf8(&text[at + mark.len()..]).ok()?;
    Some((&text[..at], parse_digits(digits)?))
}

/// Takes the committed images (process, step) of one application in one directory. Returns the first time step to keep
/// so that the newest `keep` complete steps stay; older steps are obsolete.
///
/// A step is complete when every process that committed an image of any older step has committed one of it. So no image
/// is deleted before each process has a newer one, even while a process is slow or after one died in the middle of a
/// step. An application that continues with fewer processes keeps its older steps.
pub fn obsolete_steps(images: impl IntoIterator<Item = (u64, u64)>, keep: u64) -> Option<u64> {
    let mut steps: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (process, step) in images {
        steps.entry(step).or_default().insert(process);
    }
    let mut seen = BTreeSet::new();
    let mut complete = Vec::new();
    for (step, processes) in steps {
        if processes.is_superset(&seen) {
            complete.push(step);
        }
        seen.extend(processes);
    }
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    complete.len().checked_sub(keep).and_then(|at| complete.get(at).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_convention_or_do_not() {
        let parsed = |name: &'static str| StepName::parse(name.as_bytes()).map(|s| (s.application, s.process, s.step));
        assert_eq!(parsed("sim.N12.T3"), Some((&b"sim"[..], 12, 3)));
        assert_eq!(parsed("a.N1.T2.N3.T4"), Some((&b"a.N1.T2"[..], 3, 4)));
        for name in
            ["sim.N1.T", "sim.N.T1", ".N1.T1", "sim.T1.N1", "sim.N1.T1.bak", "sim.N-1.T1", "sim.N1.T+1", "N1.T1", ""]
        {
            assert_eq!(parsed(name), None, "{name}");
        }
        assert_eq!(parsed("sim.N1.T99999999999999999999"), None);
    }

    #[test]
    fn a_step_makes_older_ones_obsolete_once_every_process_has_it() {
        let mut images: Vec<(u64, u64)> = (0..4).map(|process| (process, 1)).collect();
        assert_eq!(obsolete_steps(images.clone(), 1), Some(1), "nothing is older");
        for process in [2, 0, 3] {
            images.push((process, 2));
            assert_eq!(obsolete_steps(images.clone(), 1), Some(1));
        }
        images.push((1, 2));
        assert_eq!(obsolete_steps(images.clone(), 1), Some(2));
        assert_eq!(obsolete_steps(images.clone(), 2), Some(1));
        assert_eq!(obsolete_steps(images.clone(), 3), None);
        // A process dies in step 3; all restart from step 2 and write step 4.
        images.extend([(0, 3), (1, 3)]);
        images.extend([(0, 4), (1, 4), (2, 4)]);
        assert_eq!(obsolete_steps(images.clone(), 1), Some(2));
        images.push((3, 4));
        assert_eq!(obsolete_steps(images.clone(), 1), Some(4));
        assert_eq!(obsolete_steps(images.clone(), 2), Some(2));
    }

    #[test]
    fn fewer_processes_make_nothing_obsolete_more_do() {
        assert_eq!(obsolete_steps([(0, 1), (1, 1), (0, 2), (0, 3)], 1), Some(1));
        assert_eq!(obsolete_steps([(0, 1), (0, 2), (1, 2)], 1), Some(2));
        assert_eq!(obsolete_steps([], 1), None);
    }
}
