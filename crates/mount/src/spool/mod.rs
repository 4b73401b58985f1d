//! What the spool knows without touching a disk: the format of a log ([`record`]), the file that a log describes ([`overlay`]), what a log
//! that an earlier mount left says ([`replay`]), and what all logs may use ([`budget`]).

pub mod budget;
pub mod overlay;
pub mod record;
pub mod replay;
pub mod speed;
