//! A simulated machine with a mount: the real mount core, whose requests are futures.
//!
//! A request stays pending until the simulated network delivers its answer, so every wait of an operation interleaves
//! with the other mounts. Everything runs in one thread: [`executor`] polls the tasks, [`mod@env`] has the time, [`link`]
//! repeats requests as the client library does, [`kernel`] caches as a kernel does, and [`host`] puts them together.

pub mod backend;
pub mod env;
pub mod executor;
pub mod fs;
pub mod host;
pub mod kernel;
pub mod link;
pub mod store;
