//! Where records start in CSV whose fields may contain line breaks.
//!
//! A unit begins somewhere in a file; whether inside quotes, its own bytes may not tell. RFC 4180 allows a quote only at
//! the start of a field, doubled inside quotes, or before a separator. So two readings of the same bytes, one that
//! begins inside quotes and one outside, differ soon: one of them meets a quote where none may be. The one that
//! survives is proven. Bytes without quotes prove nothing; then the bytes before the unit are read, up to
//! [`MAX_FIELD_BYTES`], which is the longest quoted field that is supported.

use memchr::{memchr, memrchr};

/// The longest field in quotes: where so many bytes hold no quote, they are outside of quotes.
pub const MAX_FIELD_BYTES: u64 = 64 << 10;

/// A set of the states in which a reader of CSV may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct States(u8);

const FIELD_START: u8 = 1;
const UNQUOTED: u8 = 2;
const QUOTED: u8 = 4;
/// Behind a quote inside quotes: a second one follows, or the field ends.
const AFTER_QUOTE: u8 = 8;

impl States {
    /// At the start of a record.
    pub const RECORD_START: States = States(FIELD_START);
    /// Anywhere.
    pub const ANY: States = States(FIELD_START | UNQUOTED | QUOTED | AFTER_QUOTE);
    const OUTSIDE: States = States(FIELD_START | UNQUOTED | AFTER_QUOTE);
    const INSIDE: States = States(QUOTED);

    /// No reading of the bytes is left: they are not RFC 4180.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// A line break that led here ends a record.
    pub fn is_outside(self) -> bool {
        self.0 & QUOTED == 0
    }

    fn and(self, other: States) -> States {
        States(self.0 & other.0)
    }
}

/// What each byte makes of each set of states.
pub(super) struct Machine {
    next: Box<[[u8; 256]; 16]>,
}

impl Machine {
    pub fn new(delimiter: u8) -> Machine {
        let mut next = Box::new([[0; 256]; 16]);
        for (set, row) in next.iter_mut().enumerate() {
            for (byte, to) in row.iter_mut().enumerate() {
                *to = [FIELD_START, UNQUOTED, QUOTED, AFTER_QUOTE]
                    .into_iter()
                    .filter(|state| set as u8 & state != 0)
                    .map(|state| step(state, byte as u8, delimiter))
                    .fold(0, |all, state| all | state);
            }
        }
        Machine { next }
    }

    pub fn step(&self, from: States, byte: u8) -> States {
        States(self.next[from.0 as usize][byte as usize])
    }

    /// The states behind bytes. Quotes are rare, so the bytes between them are not looked at one by one.
    pub fn run(&self, from: States, bytes: &[u8]) -> States {
        pieces(bytes).fold(from, |states, piece| self.step_over(states, piece))
    }

    /// Goes over a quote, or over bytes without one. Of these the first tells whether a field may end there, and the last
    /// whether another one starts; what is between changes nothing.
    fn step_over(&self, from: States, piece: &[u8]) -> States {
        match piece {
            [] => from,
            [byte] => self.step(from, *byte),
            [first, .., last] => self.step(self.step(from, *first), *last),
        }
    }

    /// The states in which `after` may begin, which follows `before`, which begins in `start`. More than one reading may
    /// be left: inside and outside of quotes.
    pub fn states_between(&self, start: States, before: &[u8], after: &[u8]) -> States {
        let here = self.run(start, before);
        let (outside, inside) = (here.and(States::OUTSIDE), here.and(States::INSIDE));
        if outside.is_empty() || inside.is_empty() {
            return here;
        }
        let (mut out, mut within) = (outside, inside);
        for piece in pieces(after) {
            (out, within) = (self.step_over(out, piece), self.step_over(within, piece));
            match (out.is_empty(), within.is_empty()) {
                (false, false) => {}
                (true, false) => return inside,
                (false, true) => return outside,
                (true, true) => break,
            }
        }
        here
    }
}

/// Quotes, and the bytes between them.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let len = match memchr(b'"', rest) {
            Some(0) => 1,
            Some(before) => before,
            None if rest.is_empty() => return None,
            None => rest.len(),
        };
        let (piece, behind) = rest.split_at(len);
        rest = behind;
        Some(piece)
    })
}

/// Length of the stretch without quotes around the place where `after` follows `before`.
pub(super) fn unquoted_between(before: &[u8], after: &[u8]) -> u64 {
    let behind = memrchr(b'"', before).map_or(0, |quote| quote + 1);
    (before.len() - behind + memchr(b'"', after).unwrap_or(after.len())) as u64
}

/// Both readings are left.
pub(super) fn is_open(states: States) -> bool {
    !states.is_outside() && !states.and(States::OUTSIDE).is_empty()
}

/// Only the reading inside of quotes is left.
pub(super) fn is_inside(states: States) -> bool {
    states == States::INSIDE
}

/// The reading outside of quotes, for bytes behind so many without a quote that no field is so long.
pub(super) fn outside(states: States) -> States {
    states.and(States::OUTSIDE)
}

fn step(state: u8, byte: u8, delimiter: u8) -> u8 {
    match (state, byte) {
        (FIELD_START, b'"') | (AFTER_QUOTE, b'"') => QUOTED,
        (QUOTED, b'"') => AFTER_QUOTE,
        (QUOTED, _) => QUOTED,
        (UNQUOTED, b'"') => 0,
        (_, b'\n') => FIELD_START,
        (_, byte) if byte == delimiter => FIELD_START,
        // A carriage return before the line break.
        (AFTER_QUOTE, b'\r') => UNQUOTED,
        (AFTER_QUOTE, _) => 0,
        _ => UNQUOTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_quote_tells_inside_from_outside() {
        let machine = Machine::new(b',');
        for (before, after, inside) in [
            ("a,\"b\n", "c\",d\n", true),
            ("a,b\n", "c,\"d\"\n", false),
            ("\"x\"\"y\n", "z\"\"\n\",1\n", true),
            ("1,2\n3,", "4\n\"five\",6\n", false),
        ] {
            let found = machine.states_between(States::ANY, before.as_bytes(), after.as_bytes());
            assert!(!is_open(found), "{before:?} {after:?}");
            assert_eq!(!found.is_outside(), inside, "{before:?} {after:?}");
        }
        assert!(is_open(machine.states_between(States::ANY, b"1,2\n", b"3,4\n")), "no quote, no proof");
    }

    proptest! {
        #[test]
        fn stretches_give_the_states_of_their_bytes(set in 0u8..16, text in "([a,\r\n]{0,5}|\"){0,12}") {
            let machine = Machine::new(b',');
            let one_by_one = text.bytes().fold(States(set), |states, byte| machine.step(states, byte));
            prop_assert_eq!(machine.run(States(set), text.as_bytes()), one_by_one);
        }
    }

    #[test]
    fn stretches_without_quotes_are_measured_around_a_place() {
        for (before, after, expected) in [("", "", 0), ("ab", "c\"", 3), ("\"ab", "cd", 4), ("a\"", "\"b", 0)] {
            assert_eq!(unquoted_between(before.as_bytes(), after.as_bytes()), expected, "{before} {after}");
        }
    }

    #[test]
    fn what_is_not_csv_has_no_reading() {
        let machine = Machine::new(b',');
        assert!(machine.run(States::RECORD_START, b"a\"b").is_empty());
        assert!(machine.run(States::RECORD_START, b"\"a\"b").is_empty());
        assert!(!machine.run(States::RECORD_START, b"\"a\"\r\n\"b\"").is_empty());
    }
}
