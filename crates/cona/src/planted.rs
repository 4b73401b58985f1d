//! Bugs on request, so that the tests can show that they would be caught. Never set outside tests.

/// A bug to commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedBug {
    /// None.
    #[default]
    None,
    /// A write with [`crate::Durability::Sync`] is acknowledged without a sync.
    AckBeforeSync,
    /// A cell is named in the manifest before it was synced.
    CellNotSynced,
    /// Merges drop deletes although an older cell still has the key.
    DropDeletesEarly,
    /// Of two records of a key a merge keeps the older.
    KeepOlder,
    /// Pages are believed without comparing their checksum.
    SkipPageCheck,
    /// The log is removed when its buffer begins to be written, not when the cell is in the manifest.
    RemoveLogEarly,
    /// Records that were read stay in the cache when newer ones are flushed.
    StaleCache,
}
