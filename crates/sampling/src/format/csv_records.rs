//! From bytes to the records of CSV and their fields.
//!
//! Lines without quotes are split at their separators, which vector instructions find. A record with a quote, or with a
//! carriage return that does not end a line, goes through `csv-core`. Both read the same records from the same bytes:
//! `csv-core`'s, which end at `\n`, `\r` or `\r\n`, and of which empty ones are left out.

use super::MAX_RECORD_BYTES;
use super::separators::Separators;
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use memchr::{memchr2_iter, memrchr};

/// `csv-core` leaves it out where it stands before the first record.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The fields of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    bytes: &'a [u8],
    start: usize,
    /// Where each field ends.
    ends: &'a [usize],
    /// Bytes between two fields: the separator, or none where it was taken out.
    gap: usize,
}

impl<'a> Record<'a> {
    /// Number of fields.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn field(&self, number: usize) -> &'a [u8] {
        let start = if number == 0 { self.start } else { self.ends[number - 1] + self.gap };
        &self.bytes[start..self.ends[number]]
    }

    pub fn fields(self) -> impl Iterator<Item = &'a [u8]> {
        (0..self.len()).map(move |number| self.field(number))
    }
}

/// Calls `each` with every record and the offset behind `start` where it begins. An error comes with that offset.
pub(super) fn each_record(
    delimiter: u8,
    records: &[u8],
    start: u64,
    mut each: impl FnMut(Record<'_>) -> Result<(), String>,
) -> Result<(), (u64, String)> {
    let mut at = if records.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let (mut quoted, mut ends) = (None, Vec::new());
    while at < records.len() {
        let end = plain_end(records, at);
        let plain = &records[at..end];
        plain_records(delimiter, plain, &mut ends, &mut each)
            .map_err(|(offset, message)| (start + (at + offset) as u64, message))?;
        at = end;
        if at < records.len() {
            let quoted = quoted.get_or_insert_with(|| Quoted::new(delimiter));
            let fail = |message| (start + at as u64, message);
            let (read, record) = quoted.record(&records[at..]).map_err(fail)?;
            if let Some(record) = record {
                each(record).map_err(fail)?;
            }
            at += read;
        }
    }
    Ok(())
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
    delimiter: u8,
    records: &[u8],
    ends: &mut Vec<usize>,
    each: &mut impl FnMut(Record<'_>) -> Result<(), String>,
) -> Result<(), (usize, String)> {
    let mut start = 0;
    ends.clear();
    let mut line = |start: usize, end: usize, ends: &mut Vec<usize>| {
        let end = if end > start && records[end - 1] == b'\r' { end - 1 } else { end };
        if end > start {
            ends.push(end);
            each(Record { bytes: records, start, ends, gap: 1 }).map_err(|message| (start, message))?;
        }
        ends.clear();
        Ok(())
    };
    for place in Separators::new(records, |byte| byte == delimiter || byte == b'\n') {
        if records[place] == b'\n' {
            line(start, place, ends)?;
            start = place + 1;
        } else {
            ends.push(place);
        }
    }
    line(start, records.len(), ends)
}

/// Reads records with quotes.
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
    fn record(&mut self, input: &[u8]) -> Result<(usize, Option<Record<'_>>), String> {
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
                    let record = Record { bytes: &self.fields, start: 0, ends: &self.ends[..ended], gap: 0 };
                    return Ok((at, Some(record)));
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
        each_record(b',', records, 0, |record| {
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
            odd in "(\u{feff})?([a-c,]{0,6}(\n|\r\n)|\"[a,\n\r]{0,3}\"|[\"\r,\nü]){0,12}",
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
            assert_eq!(each_record(b',', records.as_bytes(), 100, of_two), Err((100 + offset, "not two".into())));
        }
    }

    #[test]
    fn long_fields_are_read_and_too_long_ones_refused() {
        let long = format!("\"{}\",b\n", "x".repeat(100_000));
        assert_eq!(found(long.as_bytes())[0][0].len(), 100_000);
        let many = "\"a\",".repeat(1000);
        assert_eq!(found(many.as_bytes())[0].len(), 1001);
        let huge = vec![b'x'; (MAX_RECORD_BYTES as usize) * 3];
        let refused = each_record(b',', &[b"\"", &huge[..]].concat(), 0, |_| Ok(()));
        assert!(refused.unwrap_err().1.contains("longer than 16 MiB"));
    }
}
