//! Blank lines of CSV with one column: each is a record, whose field is null. The engine's reader leaves blank lines out, as is
//! right where records have several fields; `""` in their place is a null to it.

use std::borrow::Cow;

/// The records with `""` in each blank line.
pub fn quoted(records: &[u8]) -> Cow<'_, [u8]> {
    let blank = starts_of_blank_lines(records);
    if blank.is_empty() {
        return Cow::Borrowed(records);
    }
    let mut out = Vec::with_capacity(records.len() + 2 * blank.len());
    let mut from = 0;
    for start in blank {
        out.extend_from_slice(&records[from..start]);
        out.extend_from_slice(b"\"\"");
        from = start;
    }
    out.extend_from_slice(&records[from..]);
    Cow::Owned(out)
}

/// Where lines begin that have nothing but their end, outside of quotes.
fn starts_of_blank_lines(records: &[u8]) -> Vec<usize> {
    let (mut blank, mut in_quotes, mut is_start) = (Vec::new(), false, true);
    for (at, byte) in records.iter().enumerate() {
        let ends = *byte == b'\n' || (*byte == b'\r' && records.get(at + 1) == Some(&b'\n'));
        if is_start && ends && !in_quotes {
            blank.push(at);
        }
        in_quotes ^= *byte == b'"';
        is_start = *byte == b'\n';
    }
    blank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_outside_of_quotes_get_an_empty_field() {
        for (text, expected) in [
            ("", ""),
            ("1\n2\n", "1\n2\n"),
            ("1\n\n2\n\n", "1\n\"\"\n2\n\"\"\n"),
            ("\r\n1\r\n\r\n", "\"\"\r\n1\r\n\"\"\r\n"),
            ("\"a\n\nb\"\n\n1", "\"a\n\nb\"\n\"\"\n1"),
            ("\"a\"\"\n\n\"\n", "\"a\"\"\n\n\"\n"),
        ] {
            assert_eq!(quoted(text.as_bytes()), expected.as_bytes(), "{text:?}");
        }
    }
}
