//! Flash operations by cause.

/// Why a flash operation was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Cause {
    /// A page that the host reads or writes.
    Host,
    /// A data page that garbage collection moves, or the erase of its block.
    Gc,
    /// A translation page that garbage collection moves.
    GcTranslation,
    /// A translation page that a request needs.
    Map,
    /// A translation page that follows data pages which garbage collection moved.
    MapGc,
    /// A page that static wear levelling moves, or the erase of its block.
    Wear,
    /// An out-of-band area that is read, or a translation page that is written, after a power cut.
    Recovery,
}

/// Number of causes.
const CAUSES: usize = 7;

/// How often each operation was done, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub(crate) reads: [u64; CAUSES],
    pub(crate) programs: [u64; CAUSES],
    pub(crate) erases: [u64; CAUSES],
    pub(crate) map_erases: u64,
}

impl Counters {
    /// Pages read.
    pub fn reads(&self, cause: Cause) -> u64 {
        self.reads[cause as usize]
    }

    /// Pages programmed.
    pub fn programs(&self, cause: Cause) -> u64 {
        self.programs[cause as usize]
    }

    /// Blocks erased.
    pub fn erases(&self, cause: Cause) -> u64 {
        self.erases[cause as usize]
    }

    /// Blocks of translation pages erased for whatever cause; [`Counters::erases`] has them, too.
    pub fn map_erases(&self) -> u64 {
        self.map_erases
    }

    /// Pages read for whatever cause.
    pub fn all_reads(&self) -> u64 {
        self.reads.iter().sum()
    }

    /// Pages programmed for whatever cause.
    pub fn all_programs(&self) -> u64 {
        self.programs.iter().sum()
    }

    /// Blocks erased for whatever cause.
    pub fn all_erases(&self) -> u64 {
        self.erases.iter().sum()
    }

    /// Pages programmed for each page that the host wrote; 1 before the first.
    pub fn write_amplification(&self) -> f64 {
        match self.programs(Cause::Host) {
            0 => 1.0,
            host => self.all_programs() as f64 / host as f64,
        }
    }
}
