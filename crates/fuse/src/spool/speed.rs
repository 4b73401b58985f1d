//! How fast files were written: as the program saw it, and until the store had them (stdchk's observed and achieved bandwidth:
//! dissertation, section 3.5.4).

use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tessera_policy::WriteMode;

/// Files remembered.
const KEPT: usize = 4096;

/// One file's last writing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// How it was written.
    pub mode: WriteMode,
    /// Bytes that were written.
    pub bytes: u64,
    /// From the opening to the end of `close`.
    pub observed: Duration,
    /// From the opening until all was stored; none: not yet.
    pub achieved: Option<Duration>,
}

impl Speed {
    /// As it is reported.
    pub fn shown(&self) -> Value {
        let mib_per_s = |time: Duration| self.bytes as f64 / f64::from(1 << 20) / time.as_secs_f64().max(1e-9);
        json!({
            "write_mode": self.mode.name(),
            "bytes": self.bytes,
            "observed_mib_per_s": mib_per_s(self.observed),
            "achieved_mib_per_s": self.achieved.map(mib_per_s),
        })
    }
}

/// The files written last.
#[derive(Default)]
pub struct Speeds(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    files: HashMap<u64, Speed>,
    order: VecDeque<u64>,
}

impl Speeds {
    /// A file was closed.
    pub fn closed(&self, ino: u64, speed: Speed) {
        let mut kept = self.0.lock();
        if kept.files.insert(ino, speed).is_none() {
            kept.order.push_back(ino);
        }
        if kept.order.len() > KEPT
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.files.remove(&oldest);
        }
    }

    /// It is stored, so long after it was closed.
    pub fn stored(&self, ino: u64, after: Duration) -> Option<Speed> {
        let mut kept = self.0.lock();
        let speed = kept.files.get_mut(&ino)?;
        speed.achieved = Some(speed.observed + after);
        Some(*speed)
    }

    /// How fast a file was written.
    pub fn of(&self, ino: u64) -> Option<Speed> {
        self.0.lock().files.get(&ino).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_saw_and_what_was_achieved() {
        let speeds = Speeds::default();
        let (mode, observed) = (WriteMode::CompleteLocal, Duration::from_secs(2));
        speeds.closed(7, Speed { mode, bytes: 64 << 20, observed, achieved: None });
        let shown = speeds.of(7).unwrap().shown();
        assert_eq!((&shown["observed_mib_per_s"], &shown["achieved_mib_per_s"]), (&json!(32.0), &Value::Null));
        assert_eq!(speeds.stored(7, Duration::from_secs(6)).unwrap().shown()["achieved_mib_per_s"], json!(8.0));
        (100..100 + KEPT as u64).for_each(|ino| {
            speeds.closed(ino, Speed { mode, bytes: 1, observed, achieved: None });
        });
        assert_eq!((speeds.of(7), speeds.of(100).is_some()), (None, true), "the oldest is forgotten");
    }
}
