//! A memory in simulated time, on which selections are compared.
//!
//! Cores read the lines of their rows through queues of banks with row buffers. There are no caches, because a sample
//! reads every line once, and no clock: equal inputs give equal figures. Times are whole nanoseconds.
//!
//! - A *bank* serves one request at a time. A read of the open row takes `hit_ns`; of another row `close_ns` (if one is
//!   open), `open_ns` and `hit_ns`. Its queue is FR-FCFS: the oldest request to the open row, else the oldest.
//! - A run reads or writes. A *write* waits in the bank's write buffer. The core goes on as soon as the line is there,
//!   and waits while the buffer is full. Cells of PCM are written past the row buffer in `write_ns`; DRAM writes as it
//!   reads.
//! - Lines cross one *bus*, `bus_ns` each.
//! - A *core* works on its lines in order, `compute_ns` each, and requests a line once the one `ahead` before it is
//!   done. So at most `ahead` requests of a core are outstanding.
//!
//! Start at [`run`].

mod bank;
mod core;
mod engine;

pub use engine::run;

/// Most requests that a core has outstanding (table 2.1 of ArchSampler).
pub const OUTSTANDING: usize = 16;

/// How fast a memory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// Puts a row into the row buffer (t_RCD).
    pub open_ns: u64,
    /// Reads a line of the open row (t_CL).
    pub hit_ns: u64,
    /// Closes the open row before another is opened (t_RP).
    pub close_ns: u64,
    /// Writes a line into the cells; `None`: writes go through the row buffer as reads do.
    pub write_ns: Option<u64>,
    /// Lines that a bank's write buffer holds.
    pub write_buffer: usize,
    /// A line's time on the bus.
    pub bus_ns: u64,
}

impl Timing {
    /// The PCM of table 2.1: t_RCD 150 ns, t_CL 15 ns, writes 500 ns. The table names no bus and no size of the write
    /// buffer: none limits here, and a bank buffers 16 lines.
    pub const PCM: Timing =
        Timing { open_ns: 150, hit_ns: 15, close_ns: 0, write_ns: Some(500), write_buffer: 16, bus_ns: 0 };
    /// DDR4-2666 (CL19): t_RCD, t_CL and t_RP 14 ns, 21.3 GB/s.
    pub const DDR4: Timing =
        Timing { open_ns: 14, hit_ns: 14, close_ns: 14, write_ns: None, write_buffer: 16, bus_ns: 3 };

    /// The timing of a preset of [`Architecture`](super::Architecture).
    pub fn preset(name: &str) -> Option<Timing> {
        match name {
            "pcm" => Some(Timing::PCM),
            "ddr4" => Some(Timing::DDR4),
            _ => None,
        }
    }
}

/// What cores do with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Work on a line.
    pub compute_ns: u64,
    /// Lines that a core requests ahead, 1 to [`OUTSTANDING`]. Sixteen loads of 4 bytes reach one line ahead.
    pub ahead: usize,
    /// Lines are written, not read.
    pub writes: bool,
}

/// What a run took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Until the last core is done and every buffered line is written.
    pub time_ns: u64,
    /// Sum of the times from request to answer.
    pub latency_ns: u64,
    /// Time in which banks served, summed.
    pub service_ns: u64,
    /// Lines.
    pub requests: u64,
    /// Reads and writes that found their row open.
    pub hits: u64,
    /// Reads and writes that had to close another row.
    pub conflicts: u64,
    /// Requests that found their bank busy or others waiting.
    pub blocked: u64,
    /// Lines of each bank.
    pub by_bank: Vec<u64>,
}

impl Figures {
    /// Most lines of a bank compared with the mean.
    pub fn skew(&self) -> f64 {
        let most = self.by_bank.iter().max().copied().unwrap_or(0);
        most as f64 * self.by_bank.len() as f64 / self.requests.max(1) as f64
    }
}

#[cfg(test)]
mod tests;
