//! Keeps one line from filling the log: a store that is cut off refuses each request of the kernel, a disk that dies each
//! read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines of one place in the code that are logged within [`INTERVAL`]. Levels below `info` have no limit.
const AT_MOST: u64 = 50;
const INTERVAL: Duration = Duration::from_secs(10);

/// Leaves out what one place in the code logs again and again, and says how much that was. See the module.
#[derive(Default)]
pub struct Repeats(Mutex<HashMap<Identifier, Place>>);

/// A place in the code.
struct Place {
    /// When the interval began.
    since: Instant,
    /// Lines in it.
    lines: u64,
}

/// What becomes of a line.
#[derive(Debug, PartialEq)]
enum Verdict {
    Logged,
    /// So many lines of this place were left out before it.
    LoggedAfter(u64),
    LeftOut,
}

impl Place {
    fn next(&mut self, now: Instant) -> Verdict {
        self.lines += 1;
        if now.duration_since(self.since) < INTERVAL {
            return if self.lines <= AT_MOST { Verdict::Logged } else { Verdict::LeftOut };
        }
        let left_out = (self.lines - 1).saturating_sub(AT_MOST);
        *self = Place { since: now, lines: 1 };
        if left_out > 0 { Verdict::LoggedAfter(left_out) } else { Verdict::Logged }
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let now = Instant::now();
        let verdict = {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            places.entry(metadata.callsite()).or_insert(Place { since: now, lines: 0 }).next(now)
        };
        if let Verdict::LoggedAfter(left_out) = verdict {
            tracing::warn!(
                left_out,
                of = metadata.target(),
                line = metadata.line(),
                "lines like the next one were left out"
            );
        }
        verdict != Verdict::LeftOut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn what_is_left_out_is_counted_once() {
        let start = Instant::now();
        let mut place = Place { since: start, lines: 0 };
        let mut next = |after_s| place.next(start + Duration::from_secs(after_s));
        assert_eq!((0..1_000).filter(|_| next(1) == Verdict::Logged).count() as u64, AT_MOST);
        assert_eq!(next(9), Verdict::LeftOut);
        assert_eq!(next(11), Verdict::LoggedAfter(1_001 - AT_MOST));
        assert_eq!(next(12), Verdict::Logged);
        assert_eq!(next(40), Verdict::Logged, "nothing was left out");
    }

    /// Counts what reaches the log.
    struct Count(Arc<Mutex<u64>>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            *self.0.lock().unwrap() += 1;
        }
    }

    #[test]
    fn a_flood_from_one_place_leaves_room_for_others() {
        let logged = Arc::new(Mutex::new(0));
        let log = tracing_subscriber::registry().with(Count(logged.clone())).with(Repeats::default());
        tracing::subscriber::with_default(log, || {
            (0..1_000).for_each(|ino| tracing::warn!(ino, "the store refuses"));
            assert_eq!(*logged.lock().unwrap(), AT_MOST);
            tracing::warn!("something else");
            assert_eq!(*logged.lock().unwrap(), AT_MOST + 1);
            (0..1_000).for_each(|step| tracing::debug!(step, "for developers"));
            assert_eq!(*logged.lock().unwrap(), AT_MOST + 1_001);
        });
    }
}
