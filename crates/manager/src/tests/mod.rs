//! Tests of the core as a whole, through its events and actions.

mod bad_input;
mod bulk;
mod classes;
mod compare;
mod expiry;
mod files;
mod garbage;
mod leases;
mod locks;
mod log;
mod mistakes;
mod names;
mod namespace;
mod no_room;
mod packs;
mod placement;
mod preallocated;
mod proof;
mod receipts;
mod requests;
mod restart;
mod shell;
mod sources;
mod stored;
mod unfinished;
mod unpacked;
