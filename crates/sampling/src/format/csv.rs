//! CSV after RFC 4180, with a header. Fields may be quoted and contain line breaks; an empty field is null.

use super::csv_start::{MAX_FIELD_BYTES, Machine, States, is_open, outside};
use super::lines::{self, MARGIN_BYTES};
use super::{Block, Format, MAX_RECORD_BYTES, bad_record};
use crate::error::Error;
use crate::layout::Unit;
use crate::question::{Bound, FieldValue};
use crate::source::{FileIndex, Source};
use crate::tally::UnitTally;
use csv_core::{ReadRecordResult, ReaderBuilder};
use memchr::memchr;

/// How CSV is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsvOptions {
    /// What separates fields; found in the first line if it is not given.
    pub delimiter: Option<u8>,
    /// The first record names the fields. Without, they are named `1`, `2`, ….
    pub header: bool,
}

impl Default for CsvOptions {
    fn default() -> Self {
        CsvOptions { delimiter: None, header: true }
    }
}

/// CSV of which a question is asked.
pub struct Csv {
    question: Bound,
    machine: Machine,
    /// A clone of a reader knows no separators (csv-core 0.1.13), so each block builds its own.
    reader: ReaderBuilder,
    files: Vec<Columns>,
}

/// Where a file has its fields.
struct Columns {
    /// Fields in a record.
    count: usize,
    /// For each field of the question its place in the record.
    places: Vec<usize>,
    /// Where the records start: behind the header.
    start: u64,
}

impl Csv {
    /// Reads the headers of all files.
    ///
    /// # Errors
    /// A file has no header, or lacks a field.
    pub fn open(source: &dyn Source, question: Bound, options: CsvOptions) -> Result<Csv, Error> {
        let delimiter = match options.delimiter {
            Some(delimiter) => delimiter,
            None => find_delimiter(source)?,
        };
        let mut reader = ReaderBuilder::new();
        reader.delimiter(delimiter);
        let mut csv = Csv { question, machine: Machine::new(delimiter), reader, files: Vec::new() };
        for file in 0..source.files().len() as FileIndex {
            let columns = csv.columns(source, file, options.header)?;
            csv.files.push(columns);
        }
        Ok(csv)
    }

    fn columns(&self, source: &dyn Source, file: FileIndex, header: bool) -> Result<Columns, Error> {
        let info = &source.files()[file as usize];
        let first = self.first_record(source, file)?;
        let mut names = Vec::new();
        self.each_record(&first, 0, |_, fields| {
            names = fields.iter().map(|field| String::from_utf8_lossy(field).into_owned()).collect();
            Ok(())
        })
        .map_err(|(offset, message)| bad_record(&info.name, offset, message))?;
        if let (true, Some(name)) = (header, names.first_mut()) {
            *name = name.trim_start_matches('\u{feff}').to_string();
        }
        if !header {
            names = (1..=names.len()).map(|i| i.to_string()).collect();
        }
        let place = |field: &String| {
            names.iter().position(|name| name == field).ok_or_else(|| super::no_field(info, field, &names))
        };
        let places = if info.len_bytes == 0 {
            Vec::new()
        } else {
            self.question.fields.iter().map(place).collect::<Result<_, _>>()?
        };
        Ok(Columns { count: names.len(), places, start: if header { first.len() as u64 } else { 0 } })
    }

    fn first_record(&self, source: &dyn Source, file: FileIndex) -> Result<Vec<u8>, Error> {
        let len_bytes = source.files()[file as usize].len_bytes.min(4096);
        let head = source.read_vec(file, 0, len_bytes + MARGIN_BYTES)?;
        let block =
            self.records_of(source, Unit { file, offset: 0, len_bytes, size: len_bytes }, head, States::RECORD_START)?;
        let mut states = States::RECORD_START;
        for (at, byte) in block.bytes.iter().enumerate() {
            states = self.machine.step(states, *byte);
            if *byte == b'\n' && states.is_outside() {
                return Ok(block.bytes[..at + 1].to_vec());
            }
        }
        Ok(block.bytes)
    }

    /// The states in which the unit's first byte may be read; proven, by its own bytes or those before it.
    fn start_states(&self, source: &dyn Source, unit: Unit, own: &[u8]) -> Result<States, Error> {
        if unit.offset == 0 {
            return Ok(States::RECORD_START);
        }
        let mut states = self.machine.states_between(States::ANY, &[], own);
        let mut back = 4096.min(MAX_FIELD_BYTES);
        while is_open(states) {
            let from = unit.offset.saturating_sub(back);
            let before = source.read_vec(unit.file, from, unit.offset - from)?;
            let start = if from == 0 { States::RECORD_START } else { States::ANY };
            states = self.machine.states_between(start, &before, own);
            if is_open(states) && back >= MAX_FIELD_BYTES {
                return Ok(outside(states));
            }
            back = (back * 4).min(MAX_FIELD_BYTES);
        }
        Ok(states)
    }

    /// Finds the records behind a line break in the unit, which begins in `states` with `bytes`. Reads on until the last
    /// one ends.
    fn records_of(&self, source: &dyn Source, unit: Unit, bytes: Vec<u8>, states: States) -> Result<Block, Error> {
        // Before all headers were read, there is no header to leave out.
        let header = self.files.get(unit.file as usize).map_or(0, |columns| columns.start);
        let mut scan = Scan { machine: &self.machine, states, at: 0, bytes };
        // The first record belongs to the unit in which the header's line break lies.
        let start = match unit.offset == 0 || unit.offset < header {
            true => Some((header - unit.offset) as usize),
            false => scan.record_end(unit.len_bytes as usize),
        };
        scan.check(source, unit)?;
        let Some(start) = start else {
            return Ok(Block { unit, offset: unit.offset, bytes: Vec::new(), records: 0..0 });
        };
        scan.run_to(unit.len_bytes as usize);
        let end = loop {
            scan.check(source, unit)?;
            if let Some(end) = scan.record_end(scan.bytes.len()) {
                break end;
            }
            if scan.states.is_empty() || !lines::extend(source, unit, &mut scan.bytes)? {
                break scan.bytes.len();
            }
        };
        scan.check(source, unit)?;
        Ok(Block { unit, offset: unit.offset, bytes: scan.bytes, records: start.min(end)..end })
    }

    /// Calls `each` with the fields of every record. An error comes with the record's offset behind `start`.
    fn each_record(
        &self,
        mut records: &[u8],
        start: u64,
        mut each: impl FnMut(u64, &[&[u8]]) -> Result<(), String>,
    ) -> Result<(), (u64, String)> {
        let mut reader = self.reader.build();
        let (mut fields, mut ends) = (vec![0u8; 4096], vec![0usize; 64]);
        let (mut written, mut ended, mut offset) = (0, 0, start);
        let mut next = start;
        loop {
            let at_end = records.is_empty();
            if at_end && written + ended == 0 {
                return Ok(());
            }
            let (result, read, out, end) = reader.read_record(records, &mut fields[written..], &mut ends[ended..]);
            records = &records[read..];
            next += read as u64;
            (written, ended) = (written + out, ended + end);
            match result {
                ReadRecordResult::OutputFull if fields.len() as u64 > MAX_RECORD_BYTES => {
                    return Err((offset, format!("a record is longer than {} MiB", MAX_RECORD_BYTES >> 20)));
                }
                ReadRecordResult::OutputFull => fields.resize(fields.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => ends.resize(ends.len() * 2, 0),
                // The end of the input ends the last record.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => {
                    let starts = std::iter::once(&0).chain(&ends[..ended]);
                    let record: Vec<&[u8]> = starts.zip(&ends[..ended]).map(|(from, to)| &fields[*from..*to]).collect();
                    each(offset, &record).map_err(|message| (offset, message))?;
                    (written, ended, offset) = (0, 0, next);
                }
                ReadRecordResult::End => return Ok(()),
            }
        }
    }
}

/// Goes through the bytes of a unit once.
struct Scan<'m> {
    machine: &'m Machine,
    states: States,
    /// Bytes that were gone through.
    at: usize,
    bytes: Vec<u8>,
}

impl Scan<'_> {
    /// Goes on to the end of a record, at most to `limit`; where the next one starts.
    fn record_end(&mut self, limit: usize) -> Option<usize> {
        let limit = limit.min(self.bytes.len());
        while self.at < limit {
            let byte = self.bytes[self.at];
            self.states = self.machine.step(self.states, byte);
            self.at += 1;
            if byte == b'\n' && self.states.is_outside() {
                return Some(self.at);
            }
        }
        None
    }

    fn run_to(&mut self, limit: usize) {
        let limit = limit.min(self.bytes.len());
        if self.at < limit {
            self.states = self.machine.step(self.states, self.bytes[self.at]);
            self.at += 1;
        }
        // Most units have no quotes; only the last byte tells then whether a field starts.
        if self.states.is_outside() && self.at < limit && memchr(b'"', &self.bytes[self.at..limit]).is_none() {
            self.at = limit.saturating_sub(1).max(self.at);
        }
        while self.at < limit {
            self.states = self.machine.step(self.states, self.bytes[self.at]);
            self.at += 1;
        }
    }

    fn check(&self, source: &dyn Source, unit: Unit) -> Result<(), Error> {
        if !self.states.is_empty() {
            return Ok(());
        }
        let message = "a quote stands where RFC 4180 allows none; sample the file as text, or write it anew with an RFC 4180 writer";
        Err(bad_record(&source.files()[unit.file as usize].name, unit.offset + self.at as u64, message))
    }
}

impl Format for Csv {
    fn load(&self, source: &dyn Source, unit: Unit) -> Result<Block, Error> {
        let bytes = source.read_vec(unit.file, unit.offset, unit.len_bytes + MARGIN_BYTES)?;
        let states = self.start_states(source, unit, &bytes)?;
        self.records_of(source, unit, bytes, states)
    }

    fn tally(&self, block: &Block, file: &str, tally: &mut UnitTally<'_>) -> Result<(), Error> {
        let columns = &self.files[block.unit.file as usize];
        let start = block.offset + block.records.start as u64;
        self.each_record(block.records(), start, |_, record| {
            if record.len() != columns.count {
                return Err(format!("{} fields, where the first record has {}", record.len(), columns.count));
            }
            let field = |place: &usize| FieldValue::of(Some(record[*place]).filter(|field| !field.is_empty()));
            let fields: Vec<FieldValue<'_>> = columns.places.iter().map(field).collect();
            self.question.record(&fields, tally)
        })
        .map_err(|(offset, message)| bad_record(file, offset, message))
    }
}

/// The separator that the first line of the first file has most often.
fn find_delimiter(source: &dyn Source) -> Result<u8, Error> {
    let first = (0..source.files().len()).find(|file| source.files()[*file].len_bytes > 0).unwrap_or(0);
    let head = source.read_vec(first as FileIndex, 0, 4096)?;
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let count = |delimiter: &u8| line.iter().filter(|byte| *byte == delimiter).count();
    // Of equals the last one wins.
    Ok([b'|', b';', b'\t', b','].into_iter().max_by_key(|delimiter| count(delimiter)).expect("four"))
}
