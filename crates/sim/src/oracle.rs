//! What clients know they were promised, and the comparison with what the store says (P1, P2, P3, P7, P8).
//!
//! Each file has one writer at a time, so what it may hold is known: after an acknowledged write exactly
//! that; after a write whose fate is unknown (the client died, or gave up without an answer) that or what was
//! there before. Such a write may also take effect later, for its last message may still be on its way when the next
//! writer has been answered. What was acknowledged and overwritten never comes back. A read that began and ended between two writes must find one of these. Shared logs, which
//! several clients append to, must hold each acknowledged record exactly once and any other at most once, whole.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Content of a file; `None`: there is no such file.
pub type Content = Option<Arc<Vec<u8>>>;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `P1`, …
    pub promise: &'static str,
    /// What was found.
    pub fact: String,
}

/// What one file may hold.
#[derive(Debug, Default, Clone)]
struct File {
    /// By the last acknowledgement.
    known: Content,
    /// Of writes whose fate is unknown, in the order in which they began.
    unknown: Vec<Content>,
}

/// All files and what each may hold.
#[derive(Debug, Default)]
pub struct Oracle {
    files: BTreeMap<String, File>,
    /// Records of shared logs: (text, acknowledged).
    records: BTreeMap<String, Vec<(Vec<u8>, bool)>>,
}

impl Oracle {
    /// What the file may hold now.
    pub fn possible(&self, path: &str) -> Vec<Content> {
        let file = self.files.get(path).cloned().unwrap_or_default();
        std::iter::once(file.known).chain(file.unknown).collect()
    }

    /// A write is about to start: from now on either is right.
    pub fn begin(&mut self, path: &str, content: Content) {
        self.files.entry(path.to_string()).or_default().unknown.push(content);
    }

    /// The write that began last was acknowledged.
    pub fn acknowledged(&mut self, path: &str, content: Content) {
        let file = self.files.entry(path.to_string()).or_default();
        if let Some(at) = file.unknown.iter().rposition(|unknown| *unknown == content) {
            file.unknown.remove(at);
        }
        file.known = content;
    }

    /// An append to a shared log is about to start.
    pub fn begin_record(&mut self, log: &str, record: Vec<u8>) {
        self.records.entry(log.to_string()).or_default().push((record, false));
    }

    /// It was acknowledged.
    pub fn record_acknowledged(&mut self, log: &str, record: &[u8]) {
        for (known, acknowledged) in self.records.entry(log.to_string()).or_default() {
            *acknowledged |= known == record;
        }
    }

    /// All files that were ever written.
    pub fn paths(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }

    /// All shared logs.
    pub fn logs(&self) -> Vec<String> {
        self.records.keys().cloned().collect()
    }

    /// Judges a read.
    pub fn check(&self, path: &str, found: &Content) -> Result<(), Violation> {
        let possible = self.possible(path);
        if possible.contains(found) {
            return Ok(());
        }
        let promise = match found {
            None => "P1",
            Some(_) if possible == [None] => "P3",
            Some(_) => "P2",
        };
        let say = |content: &Content| {
            content.as_ref().map_or("no file".to_string(), |c| format!("{} bytes {:08x}", c.len(), sum(c)))
        };
        let allowed: Vec<String> = possible.iter().map(say).collect();
        Err(Violation { promise, fact: format!("{path}: found {}, allowed: {}", say(found), allowed.join(" or ")) })
    }

    /// Judges the content of a shared log whose records all have `record_bytes`.
    pub fn check_log(&self, log: &str, found: &[u8], record_bytes: usize) -> Result<(), Violation> {
        let mut count: BTreeMap<&[u8], usize> = BTreeMap::new();
        for record in found.chunks(record_bytes) {
            *count.entry(record).or_default() += 1;
        }
        let known = self.records.get(log).cloned().unwrap_or_default();
        for (record, acknowledged) in &known {
            match (count.remove(record.as_slice()).unwrap_or(0), acknowledged) {
                (0, true) => {
                    return Err(Violation { promise: "P1", fact: format!("{log}: an acknowledged record is gone") });
                }
                (2.., _) => {
                    return Err(Violation { promise: "P8", fact: format!("{log}: a record stands there twice") });
                }
                _ => {}
            }
        }
        match count.keys().next() {
            Some(stranger) => {
                Err(Violation { promise: "P2", fact: format!("{log}: {} bytes nobody wrote", stranger.len()) })
            }
            None => Ok(()),
        }
    }
}

fn sum(bytes: &[u8]) -> u32 {
    tessera_accel::checksum::crc32c(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str) -> Content {
        Some(Arc::new(text.as_bytes().to_vec()))
    }

    #[test]
    fn unknown_fate_allows_both_and_certainty_one() {
        let mut oracle = Oracle::default();
        oracle.begin("f", content("a"));
        assert!(oracle.check("f", &None).is_ok() && oracle.check("f", &content("a")).is_ok());
        oracle.acknowledged("f", content("a"));
        assert_eq!(oracle.check("f", &None).unwrap_err().promise, "P1");
        assert_eq!(oracle.check("f", &content("b")).unwrap_err().promise, "P2");
        oracle.acknowledged("f", None);
        assert_eq!(oracle.check("f", &content("a")).unwrap_err().promise, "P3");
        // Its writer died: it may come late. What was acknowledged before may not.
        oracle.begin("f", content("c"));
        oracle.begin("f", content("d"));
        oracle.acknowledged("f", content("d"));
        assert!(oracle.check("f", &content("c")).is_ok() && oracle.check("f", &content("d")).is_ok());
        assert_eq!(oracle.check("f", &content("a")).unwrap_err().promise, "P2");
    }

    #[test]
    fn logs_hold_acknowledged_records_exactly_once() {
        let mut oracle = Oracle::default();
        for record in ["aa", "bb", "cc"] {
            oracle.begin_record("l", record.into());
        }
        oracle.record_acknowledged("l", b"aa");
        assert!(oracle.check_log("l", b"bbaa", 2).is_ok());
        assert_eq!(oracle.check_log("l", b"bb", 2).unwrap_err().promise, "P1");
        assert_eq!(oracle.check_log("l", b"aaaa", 2).unwrap_err().promise, "P8");
        assert_eq!(oracle.check_log("l", b"aaxx", 2).unwrap_err().promise, "P2");
    }
}
