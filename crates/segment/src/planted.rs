//! Bugs on request, so that the tests can show that they would be caught. Never set outside tests.

/// A bug to commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedBug {
    /// None.
    #[default]
    None,
    /// `sync` publishes what was appended without syncing it.
    AckBeforeSync,
    /// Opening leaves a torn tail where it is and appends behind it.
    KeepTornTail,
    /// Compaction drops delete records although an older record of the fragment is still there.
    DropDeletesEarly,
    /// Opening takes the last segment's records at their word, without checking the data.
    SkipDataCheck,
    /// Compaction removes the old segment before the copies are synced.
    RemoveBeforeSync,
    /// A failed append leaves its bytes in place, and the next one is written behind them.
    KeepFailedAppend,
    /// The index on flash is not told of dead records.
    IndexForgetsGraves,
    /// The index on flash is told that records were taken in, but not of them.
    IndexForgetsEntries,
    /// A duplicate put is acknowledged without looking whether the copy is sound.
    TrustDuplicates,
}
