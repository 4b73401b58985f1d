//! Placement: layout of placement groups over disks, and selection of a group for a chunk.

pub mod affinity;
pub mod groups;
pub mod layout;
pub mod refusal;
pub mod room;
pub mod select;
