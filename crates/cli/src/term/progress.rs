//! Progress of a long operation: on a terminal a bar with rate and time left, in a pipe a line every few seconds,
//! nothing with `--quiet` or `--json`.

use super::{Out, units};
use crate::exit::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// Interval of the plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of one command; its threads share it.
pub struct Progress {
    out: Out,
    bar: ProgressBar,
    /// When the last plain line was printed; `None`: there are no plain lines.
    last_line: Option<Mutex<Instant>>,
}

impl Progress {
    /// Progress in bytes towards `total_bytes`, if known.
    pub fn bytes(out: Out, verb: impl Into<Cow<'static, str>>, total_bytes: Option<u64>) -> Self {
        let template = match total_bytes {
            Some(_) => "{prefix} {wide_bar} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left",
            None => "{prefix} {spinner} {binary_bytes}  {binary_bytes_per_sec}",
        };
        let last_line = (out.has_notes() && !out.draws()).then(|| Mutex::new(Instant::now()));
        Progress { last_line, ..Self::new(out, verb, total_bytes, template) }
    }

    /// Progress in items towards a total that [`Progress::set`] sets.
    pub fn items(out: Out, verb: impl Into<Cow<'static, str>>) -> Self {
        Self::new(out, verb, Some(0), "{prefix} {wide_bar} {human_pos} of {human_len} {msg}  {eta} left")
    }

    fn new(out: Out, verb: impl Into<Cow<'static, str>>, total: Option<u64>, template: &str) -> Self {
        let target = if out.draws() { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(total, target).with_prefix(verb);
        // The templates above are constants. A wrong one falls back to the plain style.
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { out, bar, last_line: None }
    }

    /// Adds to the amount done.
    fn add(&self, amount: u64) {
        self.bar.inc(amount);
        self.print_line_when_due();
    }

    /// A callback for one file, which adds what the client library reports.
    pub fn steps(&self) -> impl FnMut(tessera_client::Progress) + Send + '_ {
        let mut last = 0;
        move |progress| {
            self.add(progress.done.saturating_sub(last));
            last = last.max(progress.done);
        }
    }

    /// Sets the amount done and the total.
    pub fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.print_line_when_due();
    }

    /// Sets a short message.
    pub fn message(&self, text: impl Into<Cow<'static, str>>) {
        self.bar.set_message(text);
    }

    /// Warns of something that keeps the command waiting. The bar is hidden meanwhile.
    pub fn caution(&self, message: String) {
        self.bar.suspend(|| self.out.caution(message));
    }

    /// Reports a failure that did not end the command. The bar is hidden meanwhile.
    pub fn warn(&self, failure: &Failure) {
        self.bar.suspend(|| self.out.warn(failure));
    }

    /// The amount done so far.
    pub fn done(&self) -> u64 {
        self.bar.position()
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.bar.elapsed()
    }

    /// Removes the bar.
    pub fn finish(&self) {
        let done = self.done();
        self.bar.finish_and_clear(); // This sets the position to the total.
        self.bar.set_position(done);
    }

    fn print_line_when_due(&self) {
        let Some(mut last) = self.last_line.as_ref().and_then(Mutex::try_lock) else { return };
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            let (verb, total) = (self.bar.prefix(), self.bar.length().unwrap_or(0));
            eprintln!("{}", line(&verb, self.done(), total, self.elapsed()));
        }
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
