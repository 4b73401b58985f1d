//! JSON lines: a record is an object in a line. A field is a path such as `user.name`.

use super::csv_records::BYTE_ORDER_MARK;
use super::{Block, Format, bad_record, lines};
use crate::error::Error;
use crate::layout::Unit;
use crate::question::{Bound, FieldValue};
use crate::source::Source;
use crate::tally::UnitTally;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt::{self, Formatter};
use std::ops::Range;

/// What a file of JSON must be, and how to make it so.
pub const ONE_OBJECT: &str = "JSON is read with one object in each line, which jq -c '.[]' makes of an array, and jq -c . of objects in \
                              several lines";

/// JSON lines of which a question is asked.
pub struct JsonLines {
    question: Bound,
    paths: Vec<Vec<String>>,
}

/// What is found of records; one for all records of a block, so that a record allocates nothing.
struct Found<'p, 'de> {
    paths: &'p [Vec<String>],
    /// For each path the text of its value, without quotes; none for null.
    texts: Vec<Option<Cow<'de, str>>>,
    /// Numbers of paths: those that may go on in the object that is read, behind those of the objects around it.
    open: Vec<usize>,
}

impl JsonLines {
    /// Fields are paths whose steps are separated by dots.
    pub fn new(question: Bound) -> JsonLines {
        let paths = question.fields.iter().map(|name| name.split('.').map(str::to_string).collect()).collect();
        JsonLines { question, paths }
    }

    fn record<'de>(
        &self,
        line: &'de [u8],
        found: &mut Found<'_, 'de>,
        tally: &mut UnitTally<'_>,
    ) -> Result<(), String> {
        let mut reader = serde_json::Deserializer::from_slice(line);
        found
            .object()
            .deserialize(&mut reader)
            .and_then(|()| reader.end())
            .map_err(|error| format!("no JSON object: {error}; {ONE_OBJECT}"))?;
        let field = |number: usize| FieldValue::of(found.texts[number].as_deref().map(str::as_bytes));
        self.question.record_of(&field, tally)
    }
}

/// The text of a value: a string without quotes, anything else as it is written, null as nothing. An error if escapes
/// have half of a surrogate pair, which is no character; other mistakes are found before.
fn scalar(raw: &RawValue) -> Result<Option<Cow<'_, str>>, serde_json::Error> {
    let text = raw.get();
    Ok(match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(inner) if !inner.contains('\\') => Some(Cow::Borrowed(inner)),
        Some(_) => Some(Cow::Owned(serde_json::from_str(text)?)),
        None => (text != "null").then_some(Cow::Borrowed(text)),
    })
}

impl<'p, 'de> Found<'p, 'de> {
    fn new(paths: &'p [Vec<String>]) -> Self {
        Found { paths, texts: vec![None; paths.len()], open: Vec::new() }
    }

    /// A reader of a record's object.
    fn object(&mut self) -> Object<'_, 'p, 'de> {
        self.texts.fill(None);
        self.open.clear();
        self.open.extend(0..self.paths.len());
        Object { depth: 0, open: 0..self.paths.len(), found: self }
    }
}

/// Goes through an object, keeps wanted fields and skips the rest.
struct Object<'f, 'p, 'de> {
    /// Steps of paths that lead to the object.
    depth: usize,
    /// The paths that lead here, in `Found::open`.
    open: Range<usize>,
    found: &'f mut Found<'p, 'de>,
}

impl<'de> Object<'_, '_, 'de> {
    /// Puts the paths that go through `name` at the end of the open ones.
    fn open(&mut self, name: &str) -> Range<usize> {
        let start = self.found.open.len();
        for at in self.open.clone() {
            let number = self.found.open[at];
            if self.found.paths[number][self.depth] == name {
                self.found.open.push(number);
            }
        }
        start..self.found.open.len()
    }

    /// Takes a value to which the paths in `open` lead. Those that end here are taken out; some may be left.
    fn take(&mut self, open: Range<usize>, value: &'de RawValue) -> Result<Range<usize>, String> {
        let mut end = open.start;
        for at in open.clone() {
            let number = self.found.open[at];
            if self.found.paths[number].len() == self.depth + 1 {
                let field = || self.found.paths[number].join(".");
                self.found.texts[number] = scalar(value)
                    .map_err(|_| format!("the text of `{}` has an escape with half of a surrogate pair", field()))?;
            } else {
                self.found.open[end] = number;
                end += 1;
            }
        }
        Ok(open.start..end)
    }
}

impl<'de> DeserializeSeed<'de> for Object<'_, '_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

/// A name in an object, compared while it is read: most have no escapes, so they are not copied.
struct Name<'a, 'f, 'p, 'de>(&'a mut Object<'f, 'p, 'de>);

impl<'de> DeserializeSeed<'de> for Name<'_, '_, '_, 'de> {
    type Value = Range<usize>;
    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Range<usize>, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name<'_, '_, '_, 'de> {
    type Value = Range<usize>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Range<usize>, E> {
        Ok(self.0.open(name))
    }
}

impl<'de> Visitor<'de> for Object<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(open) = map.next_key_seed(Name(&mut self))? {
            if open.is_empty() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value::<&'de RawValue>()?;
            let start = open.start;
            let open = self.take(open, value).map_err(serde::de::Error::custom)?;
            if !open.is_empty() && value.get().starts_with('{') {
                let mut reader = serde_json::Deserializer::from_str(value.get());
                let object = Object { depth: self.depth + 1, open, found: &mut *self.found };
                object.deserialize(&mut reader).map_err(serde::de::Error::custom)?;
            }
            self.found.open.truncate(start);
        }
        Ok(())
    }
}

impl Format for JsonLines {
    fn load_into(&self, source: &dyn Source, unit: Unit, buffer: Vec<u8>) -> Result<Block, Error> {
        let mut block = lines::load(source, unit, buffer)?;
        if unit.offset == 0 && block.records().starts_with(BYTE_ORDER_MARK) {
            block.records.start += BYTE_ORDER_MARK.len();
        }
        Ok(block)
    }

    fn tally(&self, block: &Block, file: &str, tally: &mut UnitTally<'_>) -> Result<(), Error> {
        let start = block.offset + block.records.start as u64;
        let mut found = Found::new(&self.paths);
        lines::for_each(block.records(), |at, line| {
            if line.iter().all(u8::is_ascii_whitespace) {
                return Ok(());
            }
            self.record(line, &mut found, tally).map_err(|message| bad_record(file, start + at as u64, message))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    /// Values whose names are few, so that paths lead somewhere; texts have escapes and letters beyond ASCII.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a\\\\\"ü\n{}]{0,5}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::vec(("[ab\"]", inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// What a path leads to, as it is shown; arrays and objects as they are written.
    fn expected(record: &Map<String, Value>, path: &[String]) -> Option<String> {
        let first = record.get(&path[0])?;
        let found = path[1..].iter().try_fold(first, |value, name| value.as_object()?.get(name))?;
        match found {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    proptest! {
        #[test]
        fn fields_are_where_their_paths_lead(records in prop::collection::vec(value(), 1..4)) {
            let paths: Vec<Vec<String>> = ["a", "b", "a.a", "a.b", "b.a", "b.a.b", "a.a.a", "\"", "c"]
                .map(|path| path.split('.').map(str::to_string).collect()).to_vec();
            let lines: Vec<String> = records.iter().map(Value::to_string).collect();
            let mut found = Found::new(&paths);
            for (line, record) in lines.iter().zip(&records) {
                let mut reader = serde_json::Deserializer::from_str(line);
                let read = found.object().deserialize(&mut reader);
                prop_assert_eq!(read.is_ok(), record.is_object());
                if let Some(record) = record.as_object() {
                    let texts: Vec<Option<String>> = paths.iter().map(|path| expected(record, path)).collect();
                    prop_assert_eq!(&found.texts, &texts.iter().map(|text| text.as_deref().map(Cow::Borrowed)).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_an_error_where_it_is_asked_for() {
        let paths = [vec!["a".to_string()], vec!["b".to_string(), "c".to_string()]];
        let mut found = Found::new(&paths);
        let mut read = |line| found.object().deserialize(&mut serde_json::Deserializer::from_str(line));
        for line in [r#"{"a":"\ud800"}"#, r#"{"a":"x\udc00y"}"#, r#"{"a":"\ud83d\u0041"}"#, r#"{"b":{"c":"\ud800"}}"#] {
            let error = read(line).unwrap_err().to_string();
            let field = if line.contains('b') { "`b.c`" } else { "`a`" };
            assert!(error.contains(field) && error.contains("surrogate"), "{line}: {error}");
        }
        read(r#"{"a":"\ud83d\ude00","d":"\ud800"}"#).unwrap();
        assert_eq!(found.texts[0].as_deref(), Some("\u{1f600}"));
    }

    #[test]
    fn plain_texts_are_borrowed_and_the_last_of_equal_names_counts() {
        let paths = [vec!["a".to_string()]];
        let mut found = Found::new(&paths);
        for (line, text, is_borrowed) in [
            (r#"{"a":"plain","b":[{"a":1}]}"#, Some("plain"), true),
            (r#"{"a":"es\u0063aped"}"#, Some("escaped"), false),
            (r#"{"a":1,"a":2}"#, Some("2"), true),
            (r#"{"a":1,"a":null}"#, None, false),
            (r#"{"\u0061":"name"}"#, Some("name"), true),
        ] {
            found.object().deserialize(&mut serde_json::Deserializer::from_str(line)).unwrap();
            assert_eq!(found.texts[0].as_deref(), text, "{line}");
            assert_eq!(matches!(found.texts[0], Some(Cow::Borrowed(_))), is_borrowed, "{line}");
        }
    }
}
