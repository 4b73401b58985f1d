//! Bugs that can be planted, to see that the tests catch them. Outside of this crate's own tests, and of builds with the
//! feature `planted-bugs` (the simulator's), [`is`] is constantly false and costs nothing.
//!
//! Trust no number of seeds until planted bugs die.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Garbage is collected without waiting for older sessions (P4).
    NoGrace,
    /// A lost disk does not raise `since_epoch`: its acknowledgements go on counting (P11).
    StaleEpochCounts,
    /// A move ends although the incoming disk lacks fragments (P6).
    MoveEndsEarly,
    /// What was committed while a batch of a move was under way is not noted (P6).
    PassedChunksForgotten,
    /// A returning disk serves without being listed (P3).
    ReturnsUnlisted,
    /// A member may be replaced by a disk on another member's host (P6).
    SharedHost,
    /// Answers leave before the log's replicas have what they tell (P7).
    AnswersBeforeReplicas,
    /// One replica less than asked for is enough.
    OneReplicaTooFew,
    /// A repeated request is applied again (P8).
    RepeatsApply,
    /// Pages go although an older kept version needs them (P1, P4).
    PagesDroppedEarly,
    /// References of dropped pages are not taken off (P5).
    ReferencesLeak,
    /// A staged page's references are counted again when it is committed (P5).
    StagedCountedTwice,
    /// What clients have cached is changed without asking them (P7).
    NoRecall,
}

#[cfg(any(test, feature = "planted-bugs"))]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug for this thread, or takes it out.
#[cfg(any(test, feature = "planted-bugs"))]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether a bug is planted.
#[inline]
pub fn is(bug: Bug) -> bool {
    #[cfg(any(test, feature = "planted-bugs"))]
    return PLANTED.get() == Some(bug);
    #[cfg(not(any(test, feature = "planted-bugs")))]
    {
        let _ = bug;
        false
    }
}
