//! Faults of single operations, and when they happen.

use std::io;

use crate::error::{DiskError, DiskOp};
use crate::rng::SplitMix64;

/// One fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `EIO`. A write may have written some leading sectors. A sync fails.
    Eio,
    /// A write, creation or rename finds no space. A write may have written some leading sectors.
    NoSpace,
    /// A sync fails: the disk is poisoned, and any part of the unsynced bytes may be lost.
    SyncFails,
    /// A sync reports success without doing anything.
    SyncLies,
    /// A write reports success; the sectors keep their old bytes.
    LostWrite,
    /// A write lands this many sectors after its target; the target sectors keep their old bytes.
    Misdirected {
        /// The distance in sectors.
        sectors: u64,
    },
    /// The power fails during this operation. Its change reaches the cache, and it returns an error.
    PowerLoss,
}

/// Rates of random faults, each in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// Reads that fail with `EIO`.
    pub read_eio: u32,
    /// Writes and operations on names that fail with `EIO`.
    pub write_eio: u32,
    /// Syncs that fail.
    pub sync_fails: u32,
    /// Syncs that falsely report success.
    pub sync_lies: u32,
    /// Writes that are lost.
    pub lost_write: u32,
    /// Writes that land in the wrong place.
    pub misdirected: u32,
}

#[derive(Default)]
pub(super) struct Faults {
    pub(super) io_count: u64,
    pub(super) planned: Vec<(u64, Fault)>,
    pub(super) rates: FaultRates,
    pub(super) off: bool,
}

impl Faults {
    /// Counts an operation and decides whether it fails.
    pub(super) fn next(&mut self, op: DiskOp, rng: &mut SplitMix64) -> Option<Fault> {
        let index = self.io_count;
        self.io_count += 1;
        let Some(due) = self.planned.iter().position(|&(at, fault)| index >= at && applies(fault, op)) else {
            return self.drawn(op, rng);
        };
        let (_, fault) = self.planned.swap_remove(due);
        self.off |= fault == Fault::PowerLoss;
        Some(fault)
    }

    fn drawn(&self, op: DiskOp, rng: &mut SplitMix64) -> Option<Fault> {
        let rates = &self.rates;
        if *rates == FaultRates::default() {
            return None;
        }
        match op {
            DiskOp::Read => rng.one_in_million(rates.read_eio).then_some(Fault::Eio),
            DiskOp::Sync | DiskOp::SyncDir => {
                if rng.one_in_million(rates.sync_fails) {
                    Some(Fault::SyncFails)
                } else {
                    rng.one_in_million(rates.sync_lies).then_some(Fault::SyncLies)
                }
            }
            _ if rng.one_in_million(rates.write_eio) => Some(Fault::Eio),
            DiskOp::Write if rng.one_in_million(rates.lost_write) => Some(Fault::LostWrite),
            DiskOp::Write if rng.one_in_million(rates.misdirected) => {
                Some(Fault::Misdirected { sectors: 1 + rng.below(64) })
            }
            _ => None,
        }
    }
}

fn applies(fault: Fault, op: DiskOp) -> bool {
    match fault {
        Fault::Eio | Fault::PowerLoss => true,
        Fault::NoSpace => matches!(op, DiskOp::Write | DiskOp::Open | DiskOp::Rename),
        Fault::SyncFails | Fault::SyncLies => matches!(op, DiskOp::Sync | DiskOp::SyncDir),
        Fault::LostWrite | Fault::Misdirected { .. } => op == DiskOp::Write,
    }
}

pub(super) fn error(fault: Fault, path: &str, op: DiskOp, offset: u64) -> DiskError {
    let source = match fault {
        Fault::NoSpace => return DiskError::NoSpace { path: path.into(), offset, len: 0 },
        Fault::PowerLoss => io::Error::other("the power is off (simulated)"),
        _ => io::Error::other("input/output error (simulated)"),
    };
    DiskError::Io { path: path.into(), op, offset, source }
}
