//! The oracle: the contents that each file may have by the promises (P1, P2, P3, P7, P8).
//!
//! Each file has one writer at a time. After an acknowledged write its content is exactly that write's. After a write without
//! an answer (the client died or gave up) it is that write's or the one before. Such a write may also take effect later,
//! because its last message may still be in flight when the next writer gets its answer. An acknowledged content that was
//! overwritten never returns. A read between two writes must find one of the allowed contents. Shared logs, to which
//! several clients append, hold each acknowledged record exactly once and any other at most once, whole.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Content of a file; `None`: the file does not exist.
pub type Content = Option<Arc<Vec<u8>>>;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `P1`, …
    pub promise: &'static str,
    /// The observation.
    pub fact: String,
}

/// Contents that one file may have.
#[derive(Debug, Default, Clone)]
struct File {
    /// Content of the last acknowledged write.
    known: Content,
    /// Contents of writes without an answer, in the order in which they began.
    unknown: Vec<Content>,
    /// Lengths of contents that were overwritten since, in order; `None`: there was no file.
    history: Vec<Option<u64>>,
}

/// All files and their allowed contents.
#[derive(Debug, Default)]
pub struct Oracle {
    files: BTreeMap<String, File>,
    /// Records of shared logs: (text, acknowledged).
    records: BTreeMap<String, Vec<(Vec<u8>, bool)>>,
}

impl Oracle {
    /// Contents that the file may have now.
    pub fn possible(&self, path: &str) -> Vec<Content> {
        let file = self.files.get(path).cloned().unwrap_or_default();
        std::iter::once(file.known).chain(file.unknown).collect()
    }

    /// A write starts: its content is allowed from now on.
    pub fn begin(&mut self, path: &str, content: Content) {
        self.files.entry(path.to_string()).or_default().unknown.push(content);
    }

    /// The write that began last was acknowledged.
    pub fn acknowledged(&mut self, path: &str, content: Content) {
        let file = self.files.entry(path.to_string()).or_default();
        if let Some(at) = file.unknown.iter().rposition(|unknown| *unknown == content) {
            file.unknown.remove(at);
        }
        let before = std::mem::replace(&mut file.known, content);
        file.history.push(length(&before));
    }

    /// A point in the file's history, for [`Oracle::check_length`].
    #[must_use]
    pub fn moment(&self, path: &str) -> usize {
        self.files.get(path).map_or(0, |file| file.history.len())
    }

    /// Checks the length that a look-up found, `None` if there was no file: one that the file had at `since` or later (P7).
    ///
    /// # Errors
    /// The file had that length neither then nor since.
    pub fn check_length(&self, path: &str, since: usize, found: Option<u64>) -> Result<(), Violation> {
        let history = self.files.get(path).map_or(&[][..], |file| &file.history[since..]);
        let possible = self.possible(path);
        match history.contains(&found) || possible.iter().any(|content| length(content) == found) {
            true => Ok(()),
            false => {
                let fact =
                    format!("{path}: a look-up found {found:?} bytes; that content was overwritten before it began");
                Err(Violation { promise: "P7", fact })
            }
        }
    }

    /// An append to a shared log starts.
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

    /// Checks what a read found.
    ///
    /// # Errors
    /// The promise that the content breaks.
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
        let describe = |content: &Content| {
            content.as_ref().map_or("no file".to_string(), |c| format!("{} bytes {:08x}", c.len(), sum(c)))
        };
        let allowed: Vec<String> = possible.iter().map(describe).collect();
        Err(Violation {
            promise,
            fact: format!("{path}: found {}, allowed: {}", describe(found), allowed.join(" or ")),
        })
    }

    /// Checks the content of a shared log whose records have `record_bytes` each.
    ///
    /// # Errors
    /// The promise that the content breaks.
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
                    return Err(Violation { promise: "P8", fact: format!("{log}: a record occurs twice") });
                }
                _ => {}
            }
        }
        match count.keys().next() {
            Some(unknown) => {
                Err(Violation { promise: "P2", fact: format!("{log}: {} bytes that no client wrote", unknown.len()) })
            }
            None => Ok(()),
        }
    }
}

fn length(content: &Content) -> Option<u64> {
    content.as_ref().map(|bytes| bytes.len() as u64)
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
        // The writer died: its write may come late. An earlier acknowledged one may not.
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
