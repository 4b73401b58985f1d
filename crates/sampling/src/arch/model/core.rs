//! A core: lines in order, a few requested ahead.

use super::Workload;
use std::collections::VecDeque;

/// A row that a core works on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub row: u64,
    pub bank: usize,
    pub lines: u64,
}

#[derive(Debug)]
pub(super) struct Core {
    rows: Vec<Row>,
    /// The next line to request: row, line of it.
    next: (usize, u64),
    /// Requested lines that are not done, in order: whether they arrived.
    window: VecDeque<bool>,
    /// Lines done since the beginning: the number of the first in the window.
    done: u64,
    requested: u64,
    is_working: bool,
}

impl Core {
    pub fn new(rows: Vec<Row>) -> Core {
        let rows: Vec<Row> = rows.into_iter().filter(|row| row.lines > 0).collect();
        Core { rows, next: (0, 0), window: VecDeque::new(), done: 0, requested: 0, is_working: false }
    }

    /// The next line that it requests now: its number and row.
    pub fn request(&mut self, workload: &Workload) -> Option<(u64, Row)> {
        if self.window.len() >= workload.ahead {
            return None;
        }
        let row = *self.rows.get(self.next.0)?;
        self.next.1 += 1;
        if self.next.1 == row.lines {
            self.next = (self.next.0 + 1, 0);
        }
        self.window.push_back(false);
        self.requested += 1;
        Some((self.requested - 1, row))
    }

    /// A line arrived.
    pub fn arrived(&mut self, line: u64) {
        self.window[(line - self.done) as usize] = true;
    }

    /// Begins the work on the next line if that has arrived and no other is worked on.
    pub fn begin(&mut self) -> bool {
        let begins = !self.is_working && self.window.front() == Some(&true);
        self.is_working |= begins;
        begins
    }

    /// Ends the work on a line.
    pub fn end(&mut self) {
        assert!(self.is_working, "the core works on a line");
        self.is_working = false;
        self.window.pop_front();
        self.done += 1;
    }

    /// Every line is done.
    pub fn is_done(&self) -> bool {
        self.window.is_empty() && self.next.0 == self.rows.len()
    }
}
