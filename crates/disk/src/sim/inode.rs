//! The bytes of one simulated file: the current ones, and a list of changes that leads back to the durable ones.
//!
//! Appends are the common case and cost one copy: an unsynced change stores the bytes it replaced (none for an append),
//! not those it wrote. A sync clears the list.

use std::collections::BTreeSet;
use std::io::IoSlice;

use super::names::CrashKind;
use crate::rng::SplitMix64;

/// An unsynced change. The file counts as zeros without end after its length, so a truncation is a write of zeros plus
/// a length.
#[derive(Clone, Debug)]
struct Change {
    offset: u64,
    /// Number of bytes written from `offset` on.
    written: u64,
    /// The bytes replaced. Bytes past its end were past the file's length: zeros.
    before: Vec<u8>,
    len_before: u64,
    len_after: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    bytes: Vec<u8>,
    unsynced: Vec<Change>,
    pub(super) bad_sectors: BTreeSet<u64>,
}

impl Inode {
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes the slices back to back, up to `limit` bytes.
    pub(super) fn write(&mut self, offset: u64, slices: &[IoSlice<'_>], limit: u64, sector: u64) {
        let total: u64 = slices.iter().map(|s| s.len() as u64).sum();
        let written = total.min(limit);
        if written == 0 {
            return;
        }
        self.note(offset, written, self.len().max(offset + written));
        let start = offset as usize;
        if self.bytes.len() < start {
            self.bytes.resize(start, 0);
        }
        let mut at = start;
        let end = start + written as usize;
        for slice in slices {
            let slice = &slice[..slice.len().min(end - at)];
            let overwritten = slice.len().min(self.bytes.len() - at);
            self.bytes[at..at + overwritten].copy_from_slice(&slice[..overwritten]);
            self.bytes.extend_from_slice(&slice[overwritten..]);
            at += slice.len();
        }
        assert!(at == end && self.bytes.len() >= end, "wrote up to {at}, not {end}");
        if !self.bad_sectors.is_empty() {
            let healed = offset.div_ceil(sector)..(offset + written) / sector;
            self.bad_sectors.retain(|s| !healed.contains(s));
        }
    }

    pub(super) fn truncate(&mut self, len: u64) {
        let old = self.len();
        self.note(len, old.saturating_sub(len), len);
        self.bytes.resize(len as usize, 0);
    }

    /// Records the bytes that a change replaces.
    fn note(&mut self, offset: u64, written: u64, len_after: u64) {
        let have = self.bytes.len();
        let from = (offset as usize).min(have);
        let to = ((offset + written) as usize).min(have);
        let before = self.bytes[from..to].to_vec();
        let len_before = self.len();
        assert!(before.len() as u64 <= written, "a change replaces more than it writes");
        self.unsynced.push(Change { offset, written, before, len_before, len_after });
    }

    pub(super) fn sync(&mut self) {
        self.unsynced.clear();
    }

    pub(super) fn rot(&mut self, offset: u64, mask: u8) -> bool {
        match self.bytes.get_mut(offset as usize) {
            Some(byte) => {
                *byte ^= mask;
                true
            }
            None => false,
        }
    }

    /// The file after a power loss.
    pub(super) fn after_power_loss(&self, kind: CrashKind, sector: u64, rng: &mut SplitMix64) -> Inode {
        let kept = Inode { bad_sectors: self.bad_sectors.clone(), ..Inode::default() };
        if self.unsynced.is_empty() || kind == CrashKind::KeepAll {
            return Inode { bytes: self.bytes.clone(), ..kept };
        }
        let (mut image, redo) = self.undone();
        let count = redo.len() as u64;
        let (bytes_cut, len) = match kind {
            CrashKind::KeepNone | CrashKind::KeepAll => (Cut::Prefix { whole: 0, torn: 0 }, 0),
            CrashKind::KeepSome => (Cut::PerSector { salt: rng.next_u64() }, rng.below(count + 1)),
            CrashKind::Torn => {
                let whole = rng.below(count);
                let torn = rng.below(redo[whole as usize].1.len() as u64 / sector + 2);
                (Cut::Prefix { whole, torn }, whole + u64::from(torn > 0))
            }
        };
        for (index, (offset, bytes)) in redo.iter().enumerate() {
            apply(&mut image, *offset, bytes, sector, |nth, s| bytes_cut.keeps(index as u64, count, nth, s));
        }
        let len = match len {
            0 => self.unsynced[0].len_before,
            n => self.unsynced[n as usize - 1].len_after,
        };
        image.resize(len as usize, 0);
        Inode { bytes: image, ..kept }
    }

    /// The durable bytes (extended with zeros), and the bytes that each change wrote, oldest first.
    fn undone(&self) -> (Vec<u8>, Vec<(u64, Vec<u8>)>) {
        let end = self.unsynced.iter().map(|c| (c.offset + c.written).max(c.len_before)).max();
        let mut image = self.bytes.clone();
        image.resize((end.unwrap_or(0) as usize).max(image.len()), 0);
        let mut redo = Vec::with_capacity(self.unsynced.len());
        for change in self.unsynced.iter().rev() {
            let from = change.offset as usize;
            let to = from + change.written as usize;
            redo.push((change.offset, image[from..to].to_vec()));
            image[from..to].fill(0);
            image[from..from + change.before.len()].copy_from_slice(&change.before);
        }
        redo.reverse();
        assert!(redo.len() == self.unsynced.len(), "a change is lost");
        (image, redo)
    }
}

/// Which sectors of which changes survive a power loss.
enum Cut {
    /// The oldest `whole` changes, and `torn` sectors of the next.
    Prefix { whole: u64, torn: u64 },
    /// Each sector keeps its changes up to a random one.
    PerSector { salt: u64 },
}

impl Cut {
    /// Whether change `index` of `count` reached its `nth` sector, which is sector `at` of the file.
    fn keeps(&self, index: u64, count: u64, nth: u64, at: u64) -> bool {
        match *self {
            Cut::Prefix { whole, torn } => index < whole || (index == whole && nth < torn),
            Cut::PerSector { salt } => index < SplitMix64::new(salt ^ at.wrapping_mul(0x9e37_79b9)).below(count + 1),
        }
    }
}

/// Writes the sectors of `bytes` at `offset` for which `keep(nth, sector)` is true.
fn apply(image: &mut [u8], offset: u64, bytes: &[u8], sector: u64, keep: impl Fn(u64, u64) -> bool) {
    let end = offset + bytes.len() as u64;
    let first = offset / sector;
    let mut at = offset;
    while at < end {
        let this = at / sector;
        let stop = ((this + 1) * sector).min(end);
        if keep(this - first, this) {
            let from = (at - offset) as usize;
            let to = (stop - offset) as usize;
            image[at as usize..stop as usize].copy_from_slice(&bytes[from..to]);
        }
        at = stop;
    }
}
