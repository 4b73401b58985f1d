//! Events in the order of time.

use super::bank::{Bank, Request};
use super::core::{Core, Row};
use super::{Figures, OUTSTANDING, Timing, Workload};
use crate::arch::file::LINE_BYTES;
use crate::arch::{Partitions, Selection};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A bank ends what it serves.
    Served { bank: usize },
    /// A line arrives at its core.
    Arrived { core: usize, line: u64 },
    /// A core ends its work on a line.
    Done { core: usize },
}

struct Engine<'a> {
    timing: &'a Timing,
    workload: Workload,
    cores: Vec<Core>,
    banks: Vec<Bank>,
    /// Events by time, then by the order in which they were made.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    bus_free_ns: u64,
    figures: Figures,
}

/// Runs a selection: one core for each thread.
pub fn run(
    partitions: &Partitions,
    selection: &Selection,
    element_bytes: usize,
    timing: &Timing,
    workload: Workload,
) -> Figures {
    assert!((1..=OUTSTANDING).contains(&workload.ahead), "{} lines ahead", workload.ahead);
    assert!(timing.write_buffer > 0, "a write has a place to wait in");
    let row = |row: &u64| {
        let bytes = partitions.range(*row).len() * element_bytes;
        Row { row: *row, bank: partitions.bank(*row), lines: bytes.div_ceil(LINE_BYTES) as u64 }
    };
    let cores = selection.threads.iter().map(|rows| Core::new(rows.iter().map(row).collect())).collect();
    let mut engine = Engine {
        timing,
        workload,
        cores,
        banks: (0..partitions.banks()).map(|_| Bank::default()).collect(),
        events: BinaryHeap::new(),
        made: 0,
        bus_free_ns: 0,
        figures: Figures { by_bank: vec![0; partitions.banks()], ..Default::default() },
    };
    engine.run()
}

impl Engine<'_> {
    fn run(&mut self) -> Figures {
        (0..self.cores.len()).for_each(|core| self.go_on(core, 0));
        while let Some(Reverse((now_ns, _, event))) = self.events.pop() {
            self.figures.time_ns = now_ns;
            match event {
                Event::Served { bank } => self.served(bank, now_ns),
                Event::Arrived { core, line } => {
                    self.cores[core].arrived(line);
                    self.go_on(core, now_ns);
                }
                Event::Done { core } => {
                    self.cores[core].end();
                    self.go_on(core, now_ns);
                }
            }
        }
        assert!(self.cores.iter().all(Core::is_done) && self.banks.iter().all(Bank::is_idle), "work is left");
        std::mem::take(&mut self.figures)
    }

    fn at(&mut self, time_ns: u64, event: Event) {
        self.events.push(Reverse((time_ns, self.made, event)));
        self.made += 1;
    }

    /// A core requests and works as far as it can.
    fn go_on(&mut self, core: usize, now_ns: u64) {
        while let Some((line, row)) = self.cores[core].request(&self.workload) {
            let writes = self.workload.writes;
            self.submit(Request { core, line, bank: row.bank, row: row.row, writes, issued_ns: now_ns });
        }
        if self.cores[core].begin() {
            self.at(now_ns + self.workload.compute_ns, Event::Done { core });
        }
    }

    fn submit(&mut self, request: Request) {
        let bank = &mut self.banks[request.bank];
        self.figures.requests += 1;
        self.figures.by_bank[request.bank] += 1;
        self.figures.blocked += u64::from(!bank.is_idle());
        if bank.accept(request, self.timing) {
            self.answer(request, request.issued_ns);
        }
        self.serve(request.bank, request.issued_ns);
    }

    fn serve(&mut self, bank: usize, now_ns: u64) {
        if let Some((time_ns, admitted)) = self.banks[bank].begin(self.timing, &mut self.figures) {
            self.at(now_ns + time_ns, Event::Served { bank });
            if let Some(write) = admitted {
                self.answer(write, now_ns);
            }
        }
    }

    fn served(&mut self, bank: usize, now_ns: u64) {
        let request = self.banks[bank].end();
        if !request.writes {
            self.answer(request, now_ns);
        }
        self.serve(bank, now_ns);
    }

    /// A line crosses the bus.
    fn answer(&mut self, request: Request, now_ns: u64) {
        self.bus_free_ns = self.bus_free_ns.max(now_ns) + self.timing.bus_ns;
        self.figures.latency_ns += self.bus_free_ns - request.issued_ns;
        self.at(self.bus_free_ns, Event::Arrived { core: request.core, line: request.line });
    }
}
