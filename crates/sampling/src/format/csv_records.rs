//! From bytes to the records of CSV and their fields.
//!
//! Lines without quotes are split at their separators, which vector instructions find. Where quotes surround fields, the
//! second quote is looked for. What is left goes through `csv-core`: quotes inside of fields, and carriage returns that do
//! not end a line. All three read the same records from the same bytes: `csv-core`'s, which end at `\n`, `\r` or `\r\n`, and
//! of which empty ones are left out, unless records have one field: then a blank line is a record, whose field is empty.

use super::MAX_RECORD_BYTES;
use super::separators::Separators;
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use memchr::{memchr, memchr2_iter, memrchr};

/// `csv-core` leaves it out where it stands before the first record.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How records are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub delimiter: u8,
    /// A blank line is a record of one empty field.
    pub keeps_blank: bool,
}

/// The fields of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    bytes: &'a [u8],
    fields: &'a [Bounds],
}

/// Where a field starts and ends.
type Bounds = (usize, usize);

impl<'a> Record<'a> {
    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    pub fn field(&self, number: usize) -> &'a [u8] {
        let (start, end) = self.fields[number];
        &self.bytes[start..end]
    }

    pub fn fields(self) -> impl Iterator<Item = &'a [u8]> {
        (0..self.len()).map(move |number| self.field(number))
    }
}

/// Calls `each` with every record and the offset behind `start` where it begins. An error comes with that offset.
pub(super) fn each_record(
    rules: Rules,
    records: &[u8],
    start: u64,
    mut each: impl FnMut(Record<'_>) -> Result<(), String>,
) -> Result<(), (u64, String)> {
    let mut at = if records.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let Rules { delimiter, keeps_blank } = rules;
    let (mut quoted, mut fields) = (None, Vec::new());
    while at < records.len() {
        let end = plain_end(records, at);
        let plain = &records[at..end];
        plain_records(rules, plain, &mut fields, &mut each)
            .map_err(|(offset, message)| (start + (at + offset) as u64, message))?;
        at = end;
        if at == records.len() {
            break;
        }
        let rest = &records[at..];
        let fail = |message| (start + at as u64, message);
        let read = match quoted_fields(delimiter, rest, &mut fields) {
            Some(read) => {
                each(Record { bytes: rest, fields: &fields }).map_err(fail)?;
                read
            }
            None => {
                let quoted = quoted.get_or_insert_with(|| Quoted::new(delimiter));
                let (read, record) = quoted.record(rest, &mut fields).map_err(fail)?;
                record.map_or(Ok(()), &mut each).map_err(fail)?;
                // `csv-core` ends a record at its carriage return, and takes the line break for the beginning of the next one.
                let left = if keeps_blank && rest[..read].ends_with(b"\r") { end_of_line(&rest[read..]) } else { 0 };
                read + left
            }
        };
        at += read;
    }
    Ok(())
}

/// Length of what is left of the end of a line: carriage returns and a line break; 0 if none follows.
fn end_of_line(rest: &[u8]) -> usize {
    let returns = rest.iter().take_while(|byte| **byte == b'\r').count();
    if rest.get(returns) == Some(&b'\n') { returns + 1 } else { 0 }
}

/// Where the first record from `at` on begins that is not plain.
fn plain_end(records: &[u8], at: usize) -> usize {
    let is_odd = |place: &usize| match records[*place] {
        b'"' => true,
        _ => records.get(place + 1).is_some_and(|next| *next != b'\n'),
    };
    match memchr2_iter(b'"', b'\r', &records[at..]).map(|place| at + place).find(is_odd) {
        Some(odd) => memrchr(b'\n', &records[at..odd]).map_or(at, |line_break| at + line_break + 1),
        None => records.len(),
    }
}

/// Records without quotes, whose carriage returns end lines.
fn plain_records(
    rules: Rules,
    records: &[u8],
    fields: &mut Vec<Bounds>,
    each: &mut impl FnMut(Record<'_>) -> Result<(), String>,
) -> Result<(), (usize, String)> {
    // Where the record and its last field start.
    let (mut start, mut last) = (0, 0);
    fields.clear();
    let mut line = |start: usize, last: usize, end: usize, fields: &mut Vec<Bounds>| {
        let is_blank_line = end < records.len();
        let end = if end > start && records[end - 1] == b'\r' { end - 1 } else { end };
        if end > start || (rules.keeps_blank && is_blank_line) {
            fields.push((last, end));
            each(Record { bytes: records, fields }).map_err(|message| (start, message))?;
        }
        fields.clear();
        Ok(())
    };
    for place in Separators::new(records, |byte| byte == rules.delimiter || byte == b'\n') {
        if records[place] == b'\n' {
            line(start, last, place, fields)?;
            start = place + 1;
        } else {
            fields.push((last, place));
        }
        last = place + 1;
    }
    line(start, last, records.len(), fields)
}

/// The fields of the first record if quotes stand only around fields, and how many bytes it takes.
fn quoted_fields(delimiter: u8, records: &[u8], fields: &mut Vec<Bounds>) -> Option<usize> {
    fields.clear();
    let mut start = 0;
    loop {
        let rest = &records[start..];
        let end = match rest.first() {
            Some(b'"') => {
                let end = start + 1 + memchr(b'"', &rest[1..])?;
                fields.push((start + 1, end));
                end + 1
            }
            _ => {
                let is_end = |byte: &u8| *byte == delimiter || matches!(byte, b'\n' | b'\r' | b'"');
                let end = start + rest.iter().position(is_end).unwrap_or(rest.len());
                fields.push((start, end));
                end
            }
        };
        match records[end..] {
            [] => return Some(end),
            [b'\n', ..] => return Some(end + 1),
            [b'\r', b'\n', ..] => return Some(end + 2),
            [byte, ..] if byte == delimiter => start = end + 1,
            _ => return None,
        }
    }
}

/// Reads records of any kind.
struct Quoted {
    reader: Reader,
    fields: Vec<u8>,
    ends: Vec<usize>,
}

impl Quoted {
    fn new(delimiter: u8) -> Quoted {
        let (mut fields, mut ends) = (vec![0; 4096], vec![0; 64]);
        let mut reader = ReaderBuilder::new().delimiter(delimiter).build();
        // It leaves out a byte order mark only before its first byte, which is not the first one here.
        reader.read_record(b"\n", &mut fields, &mut ends);
        Quoted { reader, fields, ends }
    }

    /// Reads a record, and how many bytes it takes. `None`: only empty records were left.
    fn record<'a>(
        &'a mut self,
        input: &[u8],
        bounds: &'a mut Vec<Bounds>,
    ) -> Result<(usize, Option<Record<'a>>), String> {
        let (mut at, mut written, mut ended) = (0, 0, 0);
        loop {
            let (fields, ends) = (&mut self.fields[written..], &mut self.ends[ended..]);
            let (result, read, out, end) = self.reader.read_record(&input[at..], fields, ends);
            (at, written, ended) = (at + read, written + out, ended + end);
            match result {
                ReadRecordResult::OutputFull if self.fields.len() as u64 > MAX_RECORD_BYTES => {
                    return Err(format!("a record is longer than {} MiB", MAX_RECORD_BYTES >> 20));
                }
                ReadRecordResult::OutputFull => self.fields.resize(self.fields.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
                // The end of the input ends the last record: it is asked again without bytes.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => {
                    let ends = &self.ends[..ended];
                    bounds.clear();
                    bounds.extend(std::iter::once(&0).chain(ends).copied().zip(ends.iter().copied()));
                    return Ok((at, Some(Record { bytes: &self.fields, fields: bounds })));
                }
                ReadRecordResult::End => return Ok((at, None)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Fields = Vec<Vec<u8>>;

    const RULES: Rules = Rules { delimiter: b',', keeps_blank: false };

    /// The records as `csv-core` alone reads them.
    fn expected(records: &[u8]) -> Vec<Fields> {
        let mut reader = ReaderBuilder::new().delimiter(b',').build();
        let (mut fields, mut ends) = (vec![0; 4096], vec![0; 4096]);
        let (mut at, mut written, mut ended, mut found) = (0, 0, 0, Vec::new());
        loop {
            let (result, read, out, end) =
                reader.read_record(&records[at..], &mut fields[written..], &mut ends[ended..]);
            (at, written, ended) = (at + read, written + out, ended + end);
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => {
                    let starts = std::iter::once(&0).chain(&ends[..ended]);
                    found.push(starts.zip(&ends[..ended]).map(|(from, to)| fields[*from..*to].to_vec()).collect());
                    (written, ended) = (0, 0);
                }
                ReadRecordResult::End => return found,
                _ => panic!("records are short"),
            }
        }
    }

    fn found(records: &[u8]) -> Vec<Fields> {
        let mut found = Vec::new();
        each_record(RULES, records, 0, |record| {
            found.push(record.fields().map(<[u8]>::to_vec).collect());
            Ok(())
        })
        .unwrap();
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// Blocks that are cut at every byte, so that quotes are unbalanced and the last line break is missing.
        #[test]
        fn records_are_those_of_csv_core(
            odd in "(\u{feff})?([a-c,]{0,6}(\n|\r\n)|\"[a,\n\r]{0,3}\"[,\n]?|\"(\"\"|b)*\"|[\"\r,\nü]){0,12}",
            plain in "([a-c,]{0,40}(\n|\r\n)){0,4}",
            order in 0usize..3,
        ) {
            let content = [format!("{odd}{plain}"), format!("{plain}{odd}"), format!("{plain}{odd}{plain}")][order].clone();
            for cut in 0..=content.len() {
                let (before, after) = content.as_bytes().split_at(cut);
                prop_assert_eq!(found(before), expected(before), "{:?}", String::from_utf8_lossy(before));
                prop_assert_eq!(found(after), expected(after), "{:?}", String::from_utf8_lossy(after));
            }
        }
    }

    #[test]
    fn errors_come_with_the_offset_of_their_record() {
        for (records, offset) in [("a,b\n\nc\n", 5), ("a,b\r\n\"c\"\n", 5), ("\"\n\",b\nc", 6)] {
            let of_two = |record: Record<'_>| if record.len() == 2 { Ok(()) } else { Err("not two".to_string()) };
            assert_eq!(each_record(RULES, records.as_bytes(), 100, of_two), Err((100 + offset, "not two".into())));
        }
    }

    #[test]
    fn blank_lines_are_records_of_one_field_if_they_are_kept() {
        let kept = Rules { delimiter: b',', keeps_blank: true };
        for (text, expected) in [
            ("1\n\n3\n", &["1", "", "3"][..]),
            ("\n\n", &["", ""]),
            ("1\r\n\r\n3", &["1", "", "3"]),
            ("\"x\"\n\n\"\"\n", &["x", "", ""]),
            ("\"x\"\"z\"\r\n\r\n\"y\"\r\n", &["x\"z", "", "y"]),
            ("1\r\r\n2\r\r\n", &["1", "2"]),
            ("\"x\"\"\n\n\"\n\n1\n", &["x\"\n\n", "", "1"]),
            ("", &[]),
        ] {
            let mut found = Vec::new();
            let read = each_record(kept, text.as_bytes(), 0, |record| {
                assert_eq!(record.len(), 1);
                found.push(String::from_utf8_lossy(record.field(0)).into_owned());
                Ok(())
            });
            assert_eq!(
                (read, &found[..]),
                (Ok(()), &expected.iter().map(|s| s.to_string()).collect::<Vec<_>>()[..]),
                "{text:?}"
            );
        }
    }

    #[test]
    fn long_fields_are_read_and_too_long_ones_refused() {
        let long = format!("\"{}\",b\n", "x".repeat(100_000));
        assert_eq!(found(long.as_bytes())[0][0].len(), 100_000);
        let many = "\"a\",".repeat(1000);
        assert_eq!(found(many.as_bytes())[0].len(), 1001);
        let huge = vec![b'x'; (MAX_RECORD_BYTES as usize) * 3];
        let refused = each_record(RULES, &[b"\"", &huge[..]].concat(), 0, |_| Ok(()));
        assert!(refused.unwrap_err().1.contains("longer than 16 MiB"));
    }
}
