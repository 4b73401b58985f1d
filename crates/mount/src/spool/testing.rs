//! Logs of any content, for tests of crates above this one.

use super::budget::Budget;
use super::log::Log;
use super::overlay::Overlay;
use super::replay::{PendingPush, ReplayError, ReplayedLog, replay};
use std::sync::Arc;
use tessera_client::Times;
use tessera_disk::{Disk, DiskError, OpenMode, SimDisk};

/// What a mount finds in a log, and what it leaves of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLog {
    /// The file that it describes.
    pub overlay: Overlay,
    /// Times to commit.
    pub times: Times,
    /// Where the file comes from, encoded.
    pub origin: Vec<u8>,
    /// Pushes since the version below: name of the content, end of the close.
    pub pushes: Vec<(u64, u64)>,
    /// The written pieces of the file, by offset; none: a piece is damaged.
    pub pieces: Vec<(u64, Option<Vec<u8>>)>,
    /// The log's bytes once a mount has taken it over.
    pub after: Vec<u8>,
}

/// Takes a log over as a mount does that starts.
///
/// # Errors
/// Why it does not.
///
/// # Panics
/// The log is changed although it is not taken over.
pub fn take_over(bytes: &[u8]) -> Result<FoundLog, String> {
    let disk = SimDisk::new(1);
    let file = disk.open("found.spool", OpenMode::Create).map_err(|error| error.to_string())?;
    file.write_at(0, bytes).map_err(|error| error.to_string())?;
    let found = replay(bytes).map_err(|error| describe(&error))?;
    let ReplayedLog { times, ref overlay, ref pushes, .. } = found;
    let (overlay, pushes) = (overlay.clone(), pushes.iter().map(|push: &PendingPush| (push.content, push.closed_end)));
    let pushes = pushes.collect();
    let budget = Arc::new(Budget::new(1 << 40));
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let log = Log::adopt(shared, file, budget, found).map_err(|error| error.to_string())?;
    let view = log.view();
    let pieces = view.overlay.slices(0..u64::MAX).map(|piece| {
        let mut out = vec![0; piece.len_bytes as usize];
        (piece.offset, view.file.read(&piece, &mut out).is_ok().then_some(out))
    });
    let pieces = pieces.collect();
    let after =
        disk.contents("found.spool").ok_or_else(|| DiskError::NotFound { path: "found.spool".into() }.to_string())?;
    Ok(FoundLog { overlay, times, origin: view.origin.encode(), pushes, pieces, after })
}

fn describe(error: &ReplayError) -> String {
    match error {
        ReplayError::Io(_) => "unreadable".into(),
        error => error.to_string(),
    }
}
