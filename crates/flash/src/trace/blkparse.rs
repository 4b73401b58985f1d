//! Text of blkparse in its default form: `major,minor cpu sequence seconds pid action rwbs sector + sectors [process]`.
//!
//! A request appears under several actions. Those issued to the driver (`D`) are taken; where the head of the trace
//! has none, those queued (`Q`).

use super::fields::{FieldError, Fields, SECTOR, request};
use super::{LineParser, Request};
use crate::ssd::Op;

/// Reads blkparse's text.
pub struct Blkparse {
    action: &'static str,
    /// Whether the summary at the end has begun.
    is_over: bool,
}

/// The columns before the action.
const BEFORE_ACTION: usize = 5;

impl Blkparse {
    /// A reader that takes the action which the head of the trace has.
    pub fn new(head: &[&str]) -> Self {
        let issued = head.iter().any(|line| line.split_ascii_whitespace().nth(BEFORE_ACTION) == Some("D"));
        Blkparse { action: if issued { "D" } else { "Q" }, is_over: false }
    }
}

/// Number of a device `major,minor`.
fn device(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(',')?;
    Some(u64::from(major.parse::<u32>().ok()?) << 32 | u64::from(minor.parse::<u32>().ok()?))
}

impl LineParser for Blkparse {
    fn parse(&mut self, line: &str) -> Result<Option<Request>, FieldError> {
        self.is_over |= line.starts_with("CPU") || line.starts_with("Total");
        if self.is_over {
            return Ok(None);
        }
        let mut fields = Fields::by_spaces(line);
        let device = fields.with("device", "major,minor", device)?;
        fields.text("cpu")?;
        fields.text("sequence")?;
        let at = fields.time("time", 1_000_000_000)?;
        fields.text("pid")?;
        if fields.text("action")? != self.action {
            return Ok(None);
        }
        let rwbs = fields.text("rwbs")?;
        let op = match () {
            () if rwbs.contains(['D', 'E']) => Op::Trim,
            () if rwbs.contains('R') => Op::Read,
            () if rwbs.contains('W') => Op::Write,
            () => return Ok(None), // A flush or a command without data.
        };
        let offset = fields.scaled("sector", SECTOR)?;
        fields.with("plus sign", "+", |text| (text == "+").then_some(()))?;
        request(at, op, device, offset, fields.scaled("sectors", SECTOR)?)
    }
}
