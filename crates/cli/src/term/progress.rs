//! Progress of a long operation: on a terminal a bar with rate and time left, in a pipe a line every few seconds,
//! nothing with `--quiet` or `--json`.

use super::{Out, units};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval of the plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of one command; its threads share it.
pub struct Progress {
    verb: &'static str,
    bar: Option<ProgressBar>,
    lines: bool,
    total: AtomicU64,
    done: AtomicU64,
    started: Instant,
    last_line: Mutex<Instant>,
}

impl Progress {
    /// Progress in bytes towards `total_bytes`, if known.
    pub fn bytes(out: &Out, verb: &'static str, total_bytes: Option<u64>) -> Self {
        let template = match total_bytes {
            Some(_) => "{prefix} {wide_bar} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left",
            None => "{prefix} {spinner} {binary_bytes}  {binary_bytes_per_sec}",
        };
        Self::new(out, verb, total_bytes, template)
    }

    /// Progress in items.
    pub fn things(out: &Out, verb: &'static str, total: Option<u64>) -> Self {
        let template = match total {
            Some(_) => "{prefix} {wide_bar} {human_pos} of {human_len} {msg}  {eta} left",
            None => "{prefix} {spinner} {human_pos} {msg}",
        };
        let mut progress = Self::new(out, verb, total, template);
        progress.lines = false;
        progress
    }

    fn new(out: &Out, verb: &'static str, total: Option<u64>, template: &str) -> Self {
        let bar = out.draws().then(|| {
            let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(8));
            // The templates above are constants. A wrong one falls back to the plain style.
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(verb);
            bar
        });
        let now = Instant::now();
        Progress {
            verb,
            lines: bar.is_none() && !out.quiet() && !out.json(),
            bar,
            total: AtomicU64::new(total.unwrap_or(0)),
            done: AtomicU64::new(0),
            started: now,
            last_line: Mutex::new(now),
        }
    }

    /// Adds to the amount done.
    pub fn add(&self, amount: u64) {
        let done = self.done.fetch_add(amount, Ordering::Relaxed) + amount;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
        if self.lines {
            self.maybe_line(done);
        }
    }

    /// Sets the amount done and the total.
    pub fn set(&self, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
        if self.lines {
            self.maybe_line(done);
        }
    }

    /// Sets a short message.
    pub fn message(&self, text: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.into());
        }
    }

    /// Hides the bar while `say` prints.
    pub fn suspend(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    /// The amount done so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn maybe_line(&self, done: u64) {
        let Some(mut last) = self.last_line.try_lock() else { return };
        if last.elapsed() < LINE_EVERY {
            return;
        }
        *last = Instant::now();
        eprintln!("{}", line(self.verb, done, self.total.load(Ordering::Relaxed), self.started.elapsed()));
    }
}

fn line(verb: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = units::rate(done, elapsed);
    if total == 0 || done == 0 {
        return format!("{verb}: {}, {rate}", units::bytes(done));
    }
    let left = elapsed.mul_f64(total.saturating_sub(done) as f64 / done as f64);
    format!("{verb}: {} of {}, {rate}, {} left", units::bytes(done), units::bytes(total), units::duration(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_tell_rate_and_time_left() {
        let text = line("put", 10 << 20, 30 << 20, Duration::from_secs(5));
        assert_eq!(text, "put: 10.0 MiB of 30.0 MiB, 2.0 MiB/s, 10.0 s left");
        assert_eq!(line("put", 0, 0, Duration::from_secs(1)), "put: 0 B, 0 B/s");
    }
}
