//! Which values a merge writes anew, and what room that takes.

use std::collections::HashSet;
use std::sync::Arc;

use tessera_failpoint as failpoint;

use crate::cell::Cell;
use crate::values::Owned;

/// Dead bytes of a cell's value files above which what lives is written anew, in percent of their bytes and the cell's,
/// which a merge for their sake alone writes anew too. A merge that is due anyway compares a file's with the file.
const DEAD_PERCENT: u64 = 20;
/// A value file with less than this many buffers is small, and so is one below a sixty-fourth of all that are merged.
const SMALL_FILE_BUFFERS: u64 = 4;
/// Small value files that become one when their cells are merged: a store keeps few files open.
const SMALL_FILES_MAX: usize = 8;

/// True if a cell's value files have so much that is dead that what lives is written anew; with `all`, if they have any.
pub(crate) fn values_due(cell: &Cell, all: bool) -> bool {
    let (bytes, dead) = cell.value_bytes();
    if failpoint::is_active("cona.dead_values_stay") {
        return false;
    }
    dead > if all { 0 } else { (bytes + cell.footer.file_bytes()) * DEAD_PERCENT / 100 }
}

/// The value files whose values a merge of these cells writes anew: those with much that is dead (with `all`, with any),
/// and small ones if they are many.
pub(crate) fn values_to_relocate(inputs: &[Arc<Cell>], buffer_bytes: u64, all: bool) -> HashSet<u64> {
    if failpoint::is_active("cona.dead_values_stay") {
        return HashSet::new();
    }
    let files = || inputs.iter().flat_map(|cell| &cell.values);
    let total: u64 = files().map(|owned| owned.file.file_bytes).sum();
    let small = |owned: &&Owned| owned.file.file_bytes < (SMALL_FILE_BUFFERS * buffer_bytes).max(total / 64);
    let many = files().filter(small).count() >= SMALL_FILES_MAX;
    let dead = |owned: &Owned| owned.dead_bytes() > if all { 0 } else { owned.file.file_bytes * DEAD_PERCENT / 100 };
    files().filter(|owned| dead(owned) || (many && small(owned))).map(|owned| owned.file.number).collect()
}

/// Most bytes that a merge writes if it writes the living values of the files `relocate` anew. It is not begun without
/// room for them: it would fill the disk for all writers and fail in the end.
pub(crate) fn relocation_bytes(inputs: &[Arc<Cell>], relocate: &HashSet<u64>) -> u64 {
    let pages: u64 = inputs.iter().map(|cell| cell.footer.file_bytes()).sum();
    let files = inputs.iter().flat_map(|cell| &cell.values).filter(|owned| relocate.contains(&owned.file.number));
    pages + files.map(|owned| owned.live_bytes).sum::<u64>()
}
