//! A bank: its row buffer, and its queue, which is the write buffer where lines are written.

use super::{Figures, Timing};
use std::collections::VecDeque;

/// A line that a core reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub core: usize,
    /// Number of the line among those of the core.
    pub line: u64,
    pub bank: usize,
    pub row: u64,
    pub writes: bool,
    pub issued_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Bank {
    open: Option<u64>,
    /// Reads that wait, or the write buffer.
    queue: VecDeque<Request>,
    /// Writes that found the buffer full.
    refused: VecDeque<Request>,
    serving: Option<Request>,
}

impl Bank {
    /// Nothing is served and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.serving.is_none() && self.queue.is_empty()
    }

    /// Takes a request. Returns whether the core may go on, which is so for a write that is buffered.
    pub fn accept(&mut self, request: Request, timing: &Timing) -> bool {
        let is_refused = request.writes && self.queue.len() >= timing.write_buffer;
        let queue = if is_refused { &mut self.refused } else { &mut self.queue };
        queue.push_back(request);
        request.writes && !is_refused
    }

    /// Begins the next request if none is served. Returns the time that it takes, and a core's write that now has a
    /// place in the buffer.
    pub fn begin(&mut self, timing: &Timing, figures: &mut Figures) -> Option<(u64, Option<Request>)> {
        if self.serving.is_some() {
            return None;
        }
        let first_hit = self.queue.iter().position(|request| Some(request.row) == self.open).unwrap_or(0);
        let request = self.queue.remove(first_hit)?;
        let admitted = self.refused.pop_front();
        self.queue.extend(admitted);
        self.serving = Some(request);
        let time = self.time_of(&request, timing, figures);
        figures.service_ns += time;
        Some((time, admitted))
    }

    fn time_of(&mut self, request: &Request, timing: &Timing, figures: &mut Figures) -> u64 {
        if let (true, Some(write_ns)) = (request.writes, timing.write_ns) {
            return write_ns;
        }
        if self.open == Some(request.row) {
            figures.hits += 1;
            return timing.hit_ns;
        }
        let close_ns = if self.open.is_some() { timing.close_ns } else { 0 };
        figures.conflicts += u64::from(self.open.is_some());
        self.open = Some(request.row);
        close_ns + timing.open_ns + timing.hit_ns
    }

    /// Ends what is served.
    pub fn end(&mut self) -> Request {
        self.serving.take().expect("the bank serves a request")
    }
}
