//! The parts of the spool that touch no disk: the format of a log ([`record`]), the file that a log describes
//! ([`overlay`]), the replay of a log from an earlier mount ([`replay`]), and the limits for all logs ([`budget`]).

pub mod budget;
pub mod overlay;
pub mod record;
pub mod replay;
pub mod speed;
