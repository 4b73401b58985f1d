//! Sessions of writers and readers.

/// What is known of sessions besides their rows.
#[derive(Default)]
pub struct SoftSessions {}
