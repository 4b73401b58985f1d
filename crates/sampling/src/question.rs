//! What is asked: an aggregate, over records that match a condition, by a key.

use crate::error::Error;
use crate::filter::Filter;
use crate::format::stretches;
use crate::tally::{Key, UnitTally};
use regex::bytes::Regex;

/// The aggregate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Aggregate {
    /// Number of records (of a key).
    Count,
    /// Sum of a field.
    Sum,
    /// Mean of a field.
    Mean,
    /// A quantile of a field, 0 to 1.
    Quantile(f64),
    /// Number of distinct keys.
    Distinct,
}

/// What gives a record its key.
#[derive(Debug, Clone)]
pub enum KeyBy {
    /// Each word of a line: what stands between white space.
    Word,
    /// A field; of text the field `line`.
    Field(String),
    /// Each match of an expression in a line: its first group, or all of it.
    Match(Regex),
}

impl KeyBy {
    /// `word`, `/EXPRESSION/`, or the name of a field.
    ///
    /// # Errors
    /// The expression is malformed.
    pub fn parse(text: &str, is_text: bool) -> Result<KeyBy, Error> {
        if let Some(expression) = text.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) {
            let regex = Regex::new(expression);
            return regex
                .map(KeyBy::Match)
                .map_err(|error| Error::Question(format!("`{text}` is no regular expression: {error}")));
        }
        Ok(if is_text && text == "word" { KeyBy::Word } else { KeyBy::Field(text.to_string()) })
    }
}

/// A question to records.
#[derive(Debug, Clone)]
pub struct Question {
    /// The aggregate.
    pub aggregate: Aggregate,
    /// The key, if records are grouped.
    pub key: Option<KeyBy>,
    /// The field whose values are aggregated, except for counts.
    pub value: Option<String>,
    /// Which records count.
    pub filter: Option<Filter>,
}

/// A question with fields by number, as readers of formats find them.
#[derive(Debug, Clone)]
pub struct Bound {
    /// Names of the fields that a reader must give, without repeats.
    pub fields: Vec<String>,
    question: Question,
    key: Option<usize>,
    value: Option<usize>,
    filter_fields: Vec<usize>,
}

/// A field of a record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FieldValue<'a> {
    /// Null: it has no value.
    Null,
    /// As it is written.
    Text(&'a [u8]),
    /// A whole number of a typed format.
    Integer(i64),
    /// Another number of a typed format.
    Float(f64),
}

impl<'a> FieldValue<'a> {
    /// The text, or null.
    pub fn of(text: Option<&'a [u8]>) -> Self {
        text.map_or(FieldValue::Null, FieldValue::Text)
    }

    /// The value as a number, if it is one.
    pub fn number(self) -> Option<f64> {
        match self {
            FieldValue::Null => None,
            FieldValue::Text(text) => number(text),
            FieldValue::Integer(value) => Some(value as f64),
            FieldValue::Float(value) => Some(value).filter(|value| value.is_finite()),
        }
    }

    /// Calls `with` with the value as text; null has none.
    pub fn with_text<R>(self, with: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            FieldValue::Null => None,
            FieldValue::Text(text) => Some(with(text)),
            FieldValue::Integer(value) => Some(with(value.to_string().as_bytes())),
            FieldValue::Float(value) => Some(with(value.to_string().as_bytes())),
        }
    }
}

impl Question {
    /// Numbers the fields.
    pub fn bind(self) -> Bound {
        let mut fields = Vec::new();
        let mut number = |name: &str| {
            fields.iter().position(|field| field == name).unwrap_or_else(|| {
                fields.push(name.to_string());
                fields.len() - 1
            })
        };
        let key = match &self.key {
            Some(KeyBy::Field(name)) => Some(number(name)),
            _ => None,
        };
        let value = self.value.as_deref().map(&mut number);
        let names = self.filter.as_ref().map(Filter::fields).unwrap_or_default();
        let filter_fields = names.iter().map(|name| number(name)).collect();
        Bound { fields, question: self, key, value, filter_fields }
    }

    /// The key that was counted as `counted`; `None` for null.
    pub(crate) fn key_of(&self, counted: &[u8]) -> Option<Key> {
        match (&self.key, counted) {
            (Some(KeyBy::Field(_)), [NULL_BYTE]) => None,
            (Some(KeyBy::Field(_)), [NULL_BYTE, field @ ..]) => Some(field.to_vec()),
            _ => Some(counted.to_vec()),
        }
    }

    /// Values are kept for a quantile.
    pub fn keeps_values(&self) -> bool {
        matches!(self.aggregate, Aggregate::Quantile(_))
    }
}

/// The first byte of what is counted for null, and of fields that begin with it. No text in UTF-8 has it.
const NULL_BYTE: u8 = 0xff;

/// Calls `count` with what stands for a field among the keys that are counted: the field itself, null as [`NULL_BYTE`],
/// and a field that begins with that with one more of it. [`Question::key_of`] is the reverse.
#[inline]
fn with_counted_key(field: FieldValue<'_>, mut count: impl FnMut(&[u8])) {
    let counted = field.with_text(|key| match key.first() {
        Some(&NULL_BYTE) => count(&[&[NULL_BYTE], key].concat()),
        _ => count(key),
    });
    if counted.is_none() {
        count(&[NULL_BYTE]);
    }
}

impl Bound {
    /// The question.
    pub fn question(&self) -> &Question {
        &self.question
    }

    /// Counts a record with these fields.
    ///
    /// # Errors
    /// The value is no number.
    pub fn record(&self, fields: &[FieldValue<'_>], tally: &mut UnitTally<'_>) -> Result<(), String> {
        self.record_of(&|number| fields[number], tally)
    }

    /// Counts a record, of which `field` gives the fields by number.
    ///
    /// # Errors
    /// The value is no number.
    #[inline]
    pub fn record_of<'a>(
        &self,
        field: &impl Fn(usize) -> FieldValue<'a>,
        tally: &mut UnitTally<'_>,
    ) -> Result<(), String> {
        if !self.matches(field) {
            return Ok(());
        }
        let value = match self.value.map(field) {
            None => 1.0,
            Some(FieldValue::Null) => return Ok(()),
            Some(value) => value.number().ok_or_else(|| self.no_number(value))?,
        };
        match self.key.map(field) {
            Some(key) => with_counted_key(key, |key| tally.add(key, value)),
            None => tally.add_ungrouped(value),
        }
        Ok(())
    }

    /// Counts a line of text; its only field is `line`.
    ///
    /// # Errors
    /// As [`Bound::record`].
    pub fn line(&self, line: &[u8], tally: &mut UnitTally<'_>) -> Result<(), String> {
        let fields = &[FieldValue::Text(line)][..self.fields.len()];
        match &self.question.key {
            Some(KeyBy::Field(_)) | None => self.record(fields, tally),
            Some(_) if !self.matches(&|number| fields[number]) => Ok(()),
            Some(KeyBy::Word) => {
                self.words(line, tally);
                Ok(())
            }
            Some(KeyBy::Match(regex)) => {
                for found in regex.captures_iter(line) {
                    let key = found.get(1).or(found.get(0)).expect("a match has group 0");
                    tally.add(key.as_bytes(), 1.0);
                }
                Ok(())
            }
        }
    }

    /// Every word counts, whatever line it is in.
    pub fn is_of_all_words(&self) -> bool {
        matches!(self.question.key, Some(KeyBy::Word)) && self.question.filter.is_none()
    }

    /// Counts the words of a text.
    pub fn words(&self, text: &[u8], tally: &mut UnitTally<'_>) {
        stretches(text, |byte| !byte.is_ascii_whitespace(), |start, end| tally.add_within(text, start, end, 1.0));
    }

    fn matches<'a>(&self, field: &impl Fn(usize) -> FieldValue<'a>) -> bool {
        self.question.filter.as_ref().is_none_or(|filter| filter.matches(&|i| field(self.filter_fields[i])))
    }

    fn no_number(&self, field: FieldValue<'_>) -> String {
        let name = self.value.map_or("", |at| &self.fields[at]);
        let brief = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned();
        let text = field.with_text(brief).unwrap_or_default();
        format!("`{text}` in field `{name}` is no number; leave such records out with --where '{name} is number'")
    }
}

/// Digits that a whole number may have so that no step of adding them up is rounded.
const EXACT_DIGITS: usize = 15;

/// A number as CSV and JSON write it.
pub fn number(text: &[u8]) -> Option<f64> {
    if (1..=EXACT_DIGITS).contains(&text.len()) && text.iter().all(u8::is_ascii_digit) {
        return Some(text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')) as f64);
    }
    let text = std::str::from_utf8(text).ok()?.trim();
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn digits_are_the_number_that_the_standard_library_reads(text in "0?[0-9]{1,18}|[0-9 +.e-]{0,6}") {
            let parsed = text.trim().parse::<f64>().ok().filter(|value| value.is_finite());
            prop_assert_eq!(number(text.as_bytes()), parsed);
        }
    }
}
