//! How fast files were written: until `close` returned, and until the store had them (stdchk's observed and achieved bandwidth:
//! dissertation, section 3.5.4).

use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tessera_policy::WriteMode;

/// Files remembered.
const MAX_FILES: usize = 4096;

/// Speed of a file's last write.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriteSpeed {
    /// Write mode.
    pub mode: WriteMode,
    /// Bytes written.
    pub bytes: u64,
    /// From `open` until `close` returned.
    pub observed: Duration,
    /// From `open` until the store had everything; none: not yet.
    pub achieved: Option<Duration>,
}

impl WriteSpeed {
    /// As JSON for reports.
    pub fn to_json(&self) -> Value {
        let mib_per_s = |time: Duration| self.bytes as f64 / f64::from(1 << 20) / time.as_secs_f64().max(1e-9);
        json!({
            "write_mode": self.mode.name(),
            "bytes": self.bytes,
            "observed_mib_per_s": mib_per_s(self.observed),
            "achieved_mib_per_s": self.achieved.map(mib_per_s),
        })
    }
}

/// The speeds of the most recently written files.
#[derive(Debug, Default)]
pub struct SpeedTable {
    files: HashMap<u64, WriteSpeed>,
    order: VecDeque<u64>,
}

impl SpeedTable {
    /// A file was closed.
    pub fn closed(&mut self, ino: u64, speed: WriteSpeed) {
        if self.files.insert(ino, speed).is_none() {
            self.order.push_back(ino);
        }
        if self.order.len() > MAX_FILES
            && let Some(oldest) = self.order.pop_front()
        {
            self.files.remove(&oldest);
        }
        assert_eq!(self.files.len(), self.order.len(), "each file has one place in the order");
    }

    /// The store has the file, `after` the close.
    pub fn stored(&mut self, ino: u64, after: Duration) -> Option<WriteSpeed> {
        let speed = self.files.get_mut(&ino)?;
        speed.achieved = Some(speed.observed + after);
        Some(*speed)
    }

    /// Speed of a file's last write, if remembered.
    pub fn get(&self, ino: u64) -> Option<WriteSpeed> {
        self.files.get(&ino).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observed_and_achieved_speed() {
        let mut speeds = SpeedTable::default();
        let (mode, observed) = (WriteMode::CompleteLocal, Duration::from_secs(2));
        speeds.closed(7, WriteSpeed { mode, bytes: 64 << 20, observed, achieved: None });
        let shown = speeds.get(7).unwrap().to_json();
        assert_eq!((&shown["observed_mib_per_s"], &shown["achieved_mib_per_s"]), (&json!(32.0), &Value::Null));
        assert_eq!(speeds.stored(7, Duration::from_secs(6)).unwrap().to_json()["achieved_mib_per_s"], json!(8.0));
        (100..100 + MAX_FILES as u64).for_each(|ino| {
            speeds.closed(ino, WriteSpeed { mode, bytes: 1, observed, achieved: None });
        });
        assert_eq!((speeds.get(7), speeds.get(100).is_some()), (None, true), "the oldest is forgotten");
    }
}
