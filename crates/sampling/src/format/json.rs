//! JSON lines: a record is an object in a line. A field is a path such as `user.name`.

use super::{Block, Format, bad_record, lines};
use crate::error::Error;
use crate::layout::Unit;
use crate::question::{Bound, FieldValue};
use crate::source::Source;
use crate::tally::UnitTally;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt::{self, Formatter};

/// JSON lines of which a question is asked.
pub struct JsonLines {
    question: Bound,
    paths: Vec<Vec<String>>,
}

impl JsonLines {
    /// Fields are paths whose steps are separated by dots.
    pub fn new(question: Bound) -> JsonLines {
        let paths = question.fields.iter().map(|name| name.split('.').map(str::to_string).collect()).collect();
        JsonLines { question, paths }
    }

    fn record(&self, line: &[u8], tally: &mut UnitTally<'_>) -> Result<(), String> {
        let mut found = vec![None; self.paths.len()];
        let wanted: Vec<Wanted<'_>> = self.paths.iter().enumerate().map(|(slot, path)| Wanted { slot, path }).collect();
        let mut reader = serde_json::Deserializer::from_slice(line);
        let object = Object { wanted, found: &mut found };
        object
            .deserialize(&mut reader)
            .and_then(|()| reader.end())
            .map_err(|error| format!("no JSON object: {error}"))?;
        let texts: Vec<Option<Vec<u8>>> = found.into_iter().map(|raw| raw.and_then(scalar)).collect();
        let fields: Vec<FieldValue<'_>> = texts.iter().map(|text| FieldValue::of(text.as_deref())).collect();
        self.question.record(&fields, tally)
    }
}

/// The text of a value: a string without quotes, anything else as it is written, null as nothing.
fn scalar(raw: &RawValue) -> Option<Vec<u8>> {
    match raw.get() {
        "null" => None,
        text if text.starts_with('"') => serde_json::from_str::<String>(text).ok().map(String::into_bytes),
        text => Some(text.as_bytes().to_vec()),
    }
}

/// A field that is looked for, and the rest of its path from here.
struct Wanted<'p> {
    slot: usize,
    path: &'p [String],
}

/// Goes through an object, keeps wanted fields and skips the rest.
struct Object<'p, 'f, 'de> {
    wanted: Vec<Wanted<'p>>,
    found: &'f mut Vec<Option<&'de RawValue>>,
}

impl<'de> DeserializeSeed<'de> for Object<'_, '_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            let here: Vec<&Wanted<'_>> = self.wanted.iter().filter(|wanted| wanted.path[0] == name).collect();
            if here.is_empty() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value::<&'de RawValue>()?;
            let inner: Vec<Wanted<'_>> = here
                .iter()
                .filter(|wanted| wanted.path.len() > 1)
                .map(|wanted| Wanted { slot: wanted.slot, path: &wanted.path[1..] })
                .collect();
            here.iter()
                .filter(|wanted| wanted.path.len() == 1)
                .for_each(|wanted| self.found[wanted.slot] = Some(value));
            if !inner.is_empty() && value.get().starts_with('{') {
                let mut reader = serde_json::Deserializer::from_str(value.get());
                let object = Object { wanted: inner, found: &mut *self.found };
                object.deserialize(&mut reader).map_err(serde::de::Error::custom)?;
            }
        }
        Ok(())
    }
}

impl Format for JsonLines {
    fn load_into(&self, source: &dyn Source, unit: Unit, buffer: Vec<u8>) -> Result<Block, Error> {
        lines::load(source, unit, buffer)
    }

    fn tally(&self, block: &Block, file: &str, tally: &mut UnitTally<'_>) -> Result<(), Error> {
        let start = block.offset + block.records.start as u64;
        lines::for_each(block.records(), |at, line| {
            if line.iter().all(u8::is_ascii_whitespace) {
                return Ok(());
            }
            self.record(line, tally).map_err(|message| bad_record(file, start + at as u64, message))
        })
    }
}
