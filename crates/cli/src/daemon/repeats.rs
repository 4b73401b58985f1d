//! Keeps one line from filling the log: a store that is cut off refuses each request of the kernel, a disk that dies each
//! read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines of one place in the code that are logged within [`INTERVAL`]. Levels below `info` have no limit.
const AT_MOST: u64 = 50;
const INTERVAL: Duration = Duration::from_secs(10);

/// Leaves out what one place in the code logs again and again, and says how much that was. See the module.
#[derive(Default)]
pub struct Repeats(Mutex<Places>);

#[derive(Default)]
struct Places(HashMap<Identifier, Place>);

/// A place in the code.
struct Place {
    metadata: &'static Metadata<'static>,
    /// When the interval began.
    since: Instant,
    /// Lines in it.
    lines: u64,
}

/// So many lines of a place were left out in an interval that is over.
#[derive(Debug, PartialEq)]
struct LeftOut {
    lines: u64,
    target: &'static str,
    line: Option<u32>,
}

impl Places {
    /// Ends the intervals that are over.
    fn end(&mut self, now: Instant) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        self.0.retain(|_, Place { metadata, since, lines }| {
            let is_over = now.duration_since(*since) >= INTERVAL;
            if is_over && *lines > AT_MOST {
                let (target, line) = (metadata.target(), metadata.line());
                left_out.push(LeftOut { lines: *lines - AT_MOST, target, line });
            }
            !is_over
        });
        left_out
    }

    /// Whether a line of this place is logged.
    fn is_logged(&mut self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        let place = self.0.entry(metadata.callsite()).or_insert(Place { metadata, since: now, lines: 0 });
        place.lines += 1;
        place.lines <= AT_MOST
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let now = Instant::now();
        let (left_out, is_logged) = {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (places.end(now), places.is_logged(metadata, now))
        };
        for LeftOut { lines, target, line } in left_out {
            tracing::warn!(lines, of = target, line, "lines from one place were left out");
        }
        is_logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn what_is_left_out_is_counted_once() {
        let (start, mut places) = (Instant::now(), Places::default());
        let after = |seconds| start + Duration::from_secs(seconds);
        let [flood, other] = metadata_of_two_places();
        assert_eq!((0..1_000).filter(|_| places.is_logged(flood, after(1))).count() as u64, AT_MOST);
        assert_eq!((places.end(after(9)), places.is_logged(flood, after(9))), (vec![], false));
        let (lines, target, line) = (1_001 - AT_MOST, flood.target(), flood.line());
        assert_eq!(places.end(after(11)), [LeftOut { lines, target, line }], "though the place says nothing more");
        assert!(places.is_logged(other, after(11)) && places.is_logged(flood, after(12)));
        assert_eq!(places.end(after(40)), [], "nothing was left out");
    }

    fn metadata_of_two_places() -> [&'static Metadata<'static>; 2] {
        #[derive(Default)]
        struct Keep(Arc<Mutex<Vec<&'static Metadata<'static>>>>);
        impl<S: Subscriber> Layer<S> for Keep {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                self.0.lock().unwrap().push(event.metadata());
            }
        }
        let kept = Arc::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Keep(Arc::clone(&kept))), || {
            tracing::warn!("one");
            tracing::warn!("two");
        });
        let kept = kept.lock().unwrap();
        [kept[0], kept[1]]
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
