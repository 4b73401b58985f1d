//! Tests of the core as a whole, through its events and actions.

mod requests;
