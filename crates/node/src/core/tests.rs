//! Scripts of the core.
