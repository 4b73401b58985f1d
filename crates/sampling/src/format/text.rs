//! Plain text: a record is a line, and keys are words, lines or matches.

use super::{Block, Format, bad_record, lines};
use crate::error::Error;
use crate::layout::Unit;
use crate::question::{Bound, KeyBy};
use crate::source::Source;
use crate::tally::UnitTally;

/// Text of which a question is asked.
pub struct Text {
    question: Bound,
}

impl Text {
    /// Text has one field, `line`.
    ///
    /// # Errors
    /// The question names another field, or asks for the values of words or matches, which have none.
    pub fn new(question: Bound) -> Result<Text, Error> {
        let parts_lines = matches!(question.question().key, Some(KeyBy::Word | KeyBy::Match(_)));
        if parts_lines && question.question().value.is_some() {
            let message = "words and matches have no value to add up; group by `line`, or count them";
            return Err(Error::Question(message.to_string()));
        }
        match question.fields.iter().find(|name| *name != "line") {
            Some(name) => Err(Error::Question(format!(
                "text has no field `{name}`; it has `line`, and `word` or /EXPRESSION/ as keys"
            ))),
            None => Ok(Text { question }),
        }
    }
}

impl Format for Text {
    fn load_into(&self, source: &dyn Source, unit: Unit, buffer: Vec<u8>) -> Result<Block, Error> {
        lines::load(source, unit, buffer)
    }

    fn tally(&self, block: &Block, file: &str, tally: &mut UnitTally<'_>) -> Result<(), Error> {
        if self.question.is_of_all_words() {
            self.question.words(block.records(), tally);
            return Ok(());
        }
        let start = block.offset + block.records.start as u64;
        lines::for_each(block.records(), |at, line| {
            self.question.line(line, tally).map_err(|message| bad_record(file, start + at as u64, message))
        })
    }
}
