//! CSV after RFC 4180, with a header. Fields may be quoted and contain line breaks; an empty field is null, and so is a blank
//! line where records have one field. Other blank lines are no records.

use super::csv_records::{BYTE_ORDER_MARK, Record, Rules, each_record};
use super::csv_start::{MAX_FIELD_BYTES, Machine, States, is_inside, is_open, outside, unquoted_between};
use super::lines::{self, MARGIN_BYTES};
use super::{Block, Format, bad_record};
use crate::error::Error;
use crate::layout::Unit;
use crate::question::{Bound, FieldValue};
use crate::source::{FileIndex, Source, SourceFile};
use crate::tally::UnitTally;

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
    delimiter: u8,
    machine: Machine,
    files: Vec<Columns>,
    /// Two files that name other fields, or the same ones in another order.
    differing: Option<(FileIndex, FileIndex)>,
}

/// Where a file has its fields.
struct Columns {
    /// Fields in a record.
    count: usize,
    /// For each field of the question its place in the record.
    places: Vec<usize>,
    /// Where the records start: behind the header.
    start: u64,
    /// Length of the byte order mark.
    mark_len: usize,
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
        let mut csv = Csv { question, delimiter, machine: Machine::new(delimiter), files: Vec::new(), differing: None };
        let mut first: Option<(FileIndex, Vec<String>)> = None;
        for file in 0..source.files().len() as FileIndex {
            let (columns, names) = csv.columns(source, file, options.header)?;
            csv.files.push(columns);
            match &first {
                _ if source.files()[file as usize].len_bytes == 0 => {}
                None => first = Some((file, names)),
                Some((of_first, known)) if *known != names => {
                    csv.differing.get_or_insert((*of_first, file));
                }
                Some(_) => {}
            }
        }
        Ok(csv)
    }

    /// Two files, if there are such, that name other fields, or the same ones in another order.
    pub fn differing_files(&self) -> Option<(FileIndex, FileIndex)> {
        self.differing
    }

    /// Where a file has its fields, and their names.
    fn columns(&self, source: &dyn Source, file: FileIndex, header: bool) -> Result<(Columns, Vec<String>), Error> {
        let info = &source.files()[file as usize];
        let first = self.first_record(source, file)?;
        let mut names = Vec::new();
        each_record(Rules { delimiter: self.delimiter, keeps_blank: false }, &first, 0, |record| {
            names = record.fields().map(|field| String::from_utf8_lossy(field).into_owned()).collect();
            Ok(())
        })
        .map_err(|(offset, message)| bad_record(&info.name, offset, message))?;
        if let (true, Some(name)) = (header, names.first_mut()) {
            *name = name.trim_start_matches('\u{feff}').to_string();
        }
        if !header {
            names = (1..=names.len()).map(|i| i.to_string()).collect();
        }
        if names.is_empty() && info.len_bytes > 0 {
            return Err(Error::Question(format!(
                "`{}` has only line breaks, so it has no header and no records",
                info.name
            )));
        }
        let place = |field: &String| only_place(info, field, &names);
        let places = if info.len_bytes == 0 {
            Vec::new()
        } else {
            self.question.fields.iter().map(place).collect::<Result<_, _>>()?
        };
        let start = if header { first.len() as u64 } else { 0 };
        Ok((Columns { count: names.len(), places, start, mark_len: mark_len(&first) }, names))
    }

    /// Length of the mark at the beginning of the unit's file, of which `bytes` may be the first before all headers were read.
    fn mark_len(&self, unit: Unit, bytes: &[u8]) -> usize {
        let columns = self.files.get(unit.file as usize);
        columns.map_or_else(|| mark_len(bytes), |columns| columns.mark_len)
    }

    /// The first record that is no blank line, with those before it.
    fn first_record(&self, source: &dyn Source, file: FileIndex) -> Result<Vec<u8>, Error> {
        let info = &source.files()[file as usize];
        let len_bytes = info.len_bytes.min(4096);
        let head = source.read_vec(file, 0, len_bytes + MARGIN_BYTES)?;
        if ends_with_carriage_return(&self.machine, &head[mark_len(&head)..]) {
            return Err(Error::Question(format!(
                "`{}` ends its lines with a carriage return alone, which is not read; write it anew with line feeds, as tr '\\r' '\\n' does",
                info.name
            )));
        }
        let block =
            self.records_of(source, Unit { file, offset: 0, len_bytes, size: len_bytes }, head, States::RECORD_START)?;
        let (mut states, mut is_blank) = (States::RECORD_START, true);
        for (at, byte) in block.bytes.iter().enumerate().skip(mark_len(&block.bytes)) {
            states = self.machine.step(states, *byte);
            is_blank &= matches!(byte, b'\n' | b'\r');
            if *byte == b'\n' && states.is_outside() && !is_blank {
                return Ok(block.bytes[..at + 1].to_vec());
            }
        }
        Ok(block.bytes)
    }

    /// The states in which the unit's first byte may be read; proven, by its own bytes or those before it.
    fn start_states(&self, source: &dyn Source, unit: Unit, own: &[u8]) -> Result<States, Error> {
        let mark = self.mark_len(unit, own);
        if unit.offset <= mark as u64 {
            return Ok(States::RECORD_START);
        }
        let mut states = self.machine.states_between(States::ANY, &[], own);
        let mut before = Vec::new();
        let mut back = 4096;
        while is_open(states) {
            if unquoted_between(&before, own) >= MAX_FIELD_BYTES || before.len() as u64 >= MAX_FIELD_BYTES {
                return Ok(outside(states));
            }
            let (from, end) = (unit.offset.saturating_sub(back), unit.offset - before.len() as u64);
            let mut more = source.read_vec(unit.file, from, end - from)?;
            more.append(&mut before);
            before = more;
            let (start, skip) = if from == 0 { (States::RECORD_START, mark) } else { (States::ANY, 0) };
            states = self.machine.states_between(start, &before[skip..], own);
            back = (back * 4).min(MAX_FIELD_BYTES);
        }
        Ok(states)
    }

    /// Finds the records behind a line break in the unit, which begins in `states` with `bytes`. Reads on until the last
    /// one ends.
    fn records_of(&self, source: &dyn Source, unit: Unit, bytes: Vec<u8>, states: States) -> Result<Block, Error> {
        // Before all headers were read, there is no header to leave out.
        let header = self.files.get(unit.file as usize).map_or(0, |columns| columns.start);
        let at = self.mark_len(unit, &bytes).saturating_sub(unit.offset as usize);
        let mut scan = Scan { machine: &self.machine, states, at, bytes };
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
        let crosses = is_inside(scan.states);
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
        scan.check_field(source, unit, crosses, end)?;
        Ok(Block { unit, offset: unit.offset, bytes: scan.bytes, records: start.min(end)..end })
    }

    fn count(&self, columns: &Columns, record: Record<'_>, tally: &mut UnitTally<'_>) -> Result<(), String> {
        if record.len() != columns.count {
            return Err(format!("{} fields, where the first record has {}", record.len(), columns.count));
        }
        let field = |number: usize| {
            let text = record.field(columns.places[number]);
            FieldValue::of(Some(text).filter(|text| !text.is_empty()))
        };
        self.question.record_of(&field, tally)
    }
}

/// Where a field is in the records of a file.
fn only_place(file: &SourceFile, field: &str, names: &[String]) -> Result<usize, Error> {
    let mut places = (0..names.len()).filter(|place| names[*place] == field);
    match (places.next(), places.next()) {
        (None, _) => Err(super::no_field(file, field, names)),
        (Some(place), None) => Ok(place),
        (Some(first), Some(second)) => Err(Error::Question(format!(
            "the header of `{}` names the field `{field}` twice, as fields {} and {}; give one of them another name in the file",
            file.name,
            first + 1,
            second + 1
        ))),
    }
}

/// Whether the first record ends with a carriage return alone. `bytes` begin a file, behind its byte order mark.
fn ends_with_carriage_return(machine: &Machine, bytes: &[u8]) -> bool {
    let mut states = States::RECORD_START;
    for (at, byte) in bytes.iter().enumerate() {
        states = machine.step(states, *byte);
        match (byte, bytes.get(at + 1)) {
            _ if !states.is_outside() => {}
            (b'\n', _) if !bytes[..at].iter().all(|byte| matches!(byte, b'\n' | b'\r')) => return false,
            (b'\r', Some(next)) if !matches!(next, b'\n' | b'\r') => return true,
            _ => {}
        }
    }
    false
}

/// Length of the byte order mark with which a file begins, if it does; a quote behind it starts a field.
fn mark_len(bytes: &[u8]) -> usize {
    if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 }
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
            self.states = self.machine.run(self.states, &self.bytes[self.at..limit]);
            self.at = limit;
        }
    }

    fn check(&self, source: &dyn Source, unit: Unit) -> Result<(), Error> {
        if !self.states.is_empty() {
            return Ok(());
        }
        let message = "a quote stands where RFC 4180 allows none; sample the file as text, or write it anew with an RFC 4180 writer";
        Err(bad_record(&source.files()[unit.file as usize].name, unit.offset + self.at as u64, message))
    }

    /// Checks the last record, which ends at `end`: that a quote ends its last field, and that the units behind this one can prove where
    /// their records start if a field in quotes goes on there (`crosses`).
    fn check_field(&self, source: &dyn Source, unit: Unit, crosses: bool, end: usize) -> Result<(), Error> {
        let bad =
            |at: usize, message| bad_record(&source.files()[unit.file as usize].name, unit.offset + at as u64, message);
        let border = (unit.len_bytes as usize).min(end);
        let opened = || memchr::memrchr(b'"', &self.bytes[..end]).unwrap_or(0);
        if end == self.bytes.len() && is_inside(self.states) {
            return Err(bad(opened(), "no quote ends the field that begins here"));
        }
        match crosses && unquoted_between(&self.bytes[..border], &self.bytes[border..end]) >= MAX_FIELD_BYTES {
            true => Err(bad(
                border,
                "a field in quotes has more than 64 KiB here; write the file anew as Parquet or JSON lines",
            )),
            false => Ok(()),
        }
    }
}

impl Format for Csv {
    fn load_into(&self, source: &dyn Source, unit: Unit, mut bytes: Vec<u8>) -> Result<Block, Error> {
        source.read_into(unit.file, unit.offset, unit.len_bytes + MARGIN_BYTES, &mut bytes)?;
        let states = self.start_states(source, unit, &bytes)?;
        self.records_of(source, unit, bytes, states)
    }

    fn tally(&self, block: &Block, file: &str, tally: &mut UnitTally<'_>) -> Result<(), Error> {
        let columns = &self.files[block.unit.file as usize];
        let start = block.offset + block.records.start as u64;
        let rules = Rules { delimiter: self.delimiter, keeps_blank: columns.count == 1 };
        each_record(rules, block.records(), start, |record| self.count(columns, record, tally))
            .map_err(|(offset, message)| bad_record(file, offset, message))
    }
}

/// The separator that the first line of the first file has most often.
fn find_delimiter(source: &dyn Source) -> Result<u8, Error> {
    let first = (0..source.files().len()).find(|file| source.files()[*file].len_bytes > 0).unwrap_or(0);
    let head = source.read_vec(first as FileIndex, 0, 4096)?;
    let line = head.split(|byte| *byte == b'\n').find(|line| !line.is_empty() && *line != b"\r").unwrap_or_default();
    let count = |delimiter: &u8| line.iter().filter(|byte| *byte == delimiter).count();
    // Of equals the last one wins.
    Ok([b'|', b';', b'\t', b','].into_iter().max_by_key(|delimiter| count(delimiter)).expect("four"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Run;
    use crate::question::{Aggregate, Question};
    use crate::source::{Contents, SourceFile};
    use parking_lot::Mutex;

    /// A file in memory that notes what is read of it.
    struct Memory {
        contents: Contents,
        bytes: Vec<u8>,
        reads: Mutex<Vec<(u64, usize)>>,
    }

    impl Memory {
        fn new(content: String) -> Memory {
            let len_bytes = content.len() as u64;
            let contents = Contents {
                files: vec![SourceFile { name: "f".into(), len_bytes }],
                disks: vec!["d".into()],
                runs: vec![Run { file: 0, offset: 0, len_bytes, disk: 0, rows: None }],
                ..Default::default()
            };
            Memory { contents, bytes: content.into_bytes(), reads: Mutex::default() }
        }

        /// What loading a unit reads: (offset, length).
        fn reads_of(&self, offset: u64, len_bytes: u64) -> Vec<(u64, usize)> {
            let question = Question { aggregate: Aggregate::Count, key: None, value: None, filter: None };
            let csv = Csv::open(self, question.bind(), CsvOptions::default()).unwrap();
            self.reads.lock().clear();
            csv.load(self, Unit { file: 0, offset, len_bytes, size: len_bytes }).unwrap();
            self.reads.lock().clone()
        }
    }

    impl Source for Memory {
        fn contents(&self) -> &Contents {
            &self.contents
        }

        fn check_unchanged(&self) -> Result<(), Error> {
            Ok(())
        }

        fn read_at(&self, _: FileIndex, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
            let from = &self.bytes[offset as usize..];
            let len = out.len().min(from.len());
            out[..len].copy_from_slice(&from[..len]);
            self.reads.lock().push((offset, len));
            Ok(len)
        }
    }

    #[test]
    fn a_unit_without_quotes_reads_no_more_before_itself_than_its_proof_needs() {
        let plain = Memory::new("1,2\n".repeat(100_000));
        let (offset, margin) = (200_000, MARGIN_BYTES as usize);
        assert_eq!(
            plain.reads_of(offset, 100_000),
            [(offset, 100_000 + margin)],
            "it is longer than any field in quotes"
        );
        let small = plain.reads_of(offset, 1000);
        assert_eq!(small[0], (offset, 1000 + margin));
        let before: usize = small[1..].iter().map(|(_, len)| len).sum();
        assert_eq!(before as u64, MAX_FIELD_BYTES, "each byte before it is read once");
        let quoted = Memory::new("1,\"2\"\n".repeat(100_000));
        assert_eq!(quoted.reads_of(offset, 1000).len(), 1, "its own quotes are the proof");
    }

    /// What loading the units of a file gives: records of each, or the error.
    fn load_all(content: &str, unit_bytes: u64) -> Result<usize, String> {
        let file = Memory::new(content.to_string());
        let question = Question { aggregate: Aggregate::Count, key: None, value: None, filter: None };
        let csv = Csv::open(&file, question.bind(), CsvOptions::default()).map_err(|e| e.to_string())?;
        let mut records = 0;
        for offset in (0..content.len() as u64).step_by(unit_bytes as usize) {
            let len_bytes = unit_bytes.min(content.len() as u64 - offset);
            let block =
                csv.load(&file, Unit { file: 0, offset, len_bytes, size: len_bytes }).map_err(|e| e.to_string())?;
            let count = |_: Record<'_>| {
                records += 1;
                Ok(())
            };
            let rules = Rules { delimiter: b',', keeps_blank: false };
            each_record(rules, block.records(), 0, count).map_err(|(_, message)| message)?;
        }
        Ok(records)
    }

    #[test]
    fn a_quote_that_nothing_ends_is_an_error() {
        let error = load_all("a,b\n1,x\n2,\"y\n3,z\n", 1 << 20).unwrap_err();
        assert!(error.contains("byte 10") && error.contains("no quote ends the field"), "{error}");
        assert_eq!(load_all("a,b\n1,x\n2,\"y\"", 1 << 20), Ok(2));
    }

    #[test]
    fn a_field_too_long_for_proofs_is_an_error_where_it_crosses_a_border() {
        let of = |len: usize| {
            let rows = "1,2\n".repeat(len / 4);
            format!("a,b\n{rows}5,\"{rows}\"\n{rows}")
        };
        let len = 3 * MAX_FIELD_BYTES as usize;
        assert_eq!(load_all(&of(len), 1 << 20), Ok(len / 2 + 1), "in one unit");
        for unit_bytes in [4096, 1 << 16, len as u64 + 1000] {
            let error = load_all(&of(len), unit_bytes).unwrap_err();
            assert!(error.contains("more than 64 KiB"), "{unit_bytes}: {error}");
            assert_eq!(load_all(&of(20_000), unit_bytes), Ok(10_001), "{unit_bytes}");
        }
    }
}
