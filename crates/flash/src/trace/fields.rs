//! Fields of a line, read with names so that errors can say which is wrong.

use super::Request;
use crate::device::Ns;
use crate::ssd::Op;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// A field that is missing or wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` is {found}; it must be {expected}")]
pub struct FieldError {
    /// Name of the field.
    pub field: &'static str,
    /// What stands there, shortened.
    pub found: String,
    /// What should.
    pub expected: &'static str,
}

impl FieldError {
    /// An error about a field that holds `text`.
    pub fn new(field: &'static str, text: Option<&str>, expected: &'static str) -> Self {
        let found = text.map_or_else(|| "missing".into(), shown);
        FieldError { field, found, expected }
    }
}

/// Characters of a field that messages show: any sum of two numbers fits.
const SHOWN_MAX: usize = 48;

/// The text of a field; a long one is shortened, and says so.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        None => format!("`{text}`"),
        Some((end, _)) => format!("`{}…` ({} characters)", &text[..end], text.chars().count()),
    }
}

/// The fields of a line, in order.
pub struct Fields<'a, I: Iterator<Item = &'a str>> {
    rest: I,
}

impl<'a> Fields<'a, std::str::SplitAsciiWhitespace<'a>> {
    /// Fields with spaces between them.
    pub fn by_spaces(line: &'a str) -> Self {
        Fields { rest: line.split_ascii_whitespace() }
    }
}

/// Fields with commas between them.
pub fn by_commas(line: &str) -> Fields<'_, impl Iterator<Item = &str>> {
    Fields { rest: line.split(',').map(str::trim) }
}

impl<'a, I: Iterator<Item = &'a str>> Fields<'a, I> {
    /// The next field as text.
    pub fn text(&mut self, field: &'static str) -> Result<&'a str, FieldError> {
        self.rest.next().ok_or_else(|| FieldError::new(field, None, "there"))
    }

    /// The next field, as `read` understands it.
    pub fn with<T>(
        &mut self,
        field: &'static str,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, FieldError> {
        let text = self.text(field)?;
        read(text).ok_or_else(|| FieldError::new(field, Some(text), expected))
    }

    /// A whole number.
    pub fn number(&mut self, field: &'static str) -> Result<u64, FieldError> {
        self.with(field, "a whole number from 0", |text| text.parse().ok())
    }

    /// A whole number of units of so many bytes or ns.
    pub fn scaled(&mut self, field: &'static str, unit: u64) -> Result<u64, FieldError> {
        self.with(field, "a whole number from 0 that is not too large", |text| {
            text.parse::<u64>().ok()?.checked_mul(unit)
        })
    }

    /// A time with decimals, in units of so many ns.
    pub fn time(&mut self, field: &'static str, unit: u64) -> Result<Ns, FieldError> {
        self.with(field, "a time from 0", |text| parse_time(text, unit))
    }

    /// An operation by its name or number.
    pub fn op(
        &mut self,
        field: &'static str,
        expected: &'static str,
        read: &[&str],
        write: &[&str],
    ) -> Result<Op, FieldError> {
        self.with(field, expected, |text| {
            let is = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(text));
            if is(read) { Some(Op::Read) } else { is(write).then_some(Op::Write) }
        })
    }
}

/// A decimal number times `unit` in whole ns, without the rounding of floating point where it has no exponent.
pub fn parse_time(text: &str, unit: u64) -> Option<Ns> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_plain = !whole.is_empty() && (whole.to_owned() + part).bytes().all(|b| b.is_ascii_digit());
    if !is_plain {
        let value = text.parse::<f64>().ok()? * unit as f64;
        return (0.0..1.8e19).contains(&value).then_some(value as Ns);
    }
    let mut scale = unit;
    let mut ns = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    for digit in part.bytes() {
        scale /= 10;
        ns = ns.checked_add(u64::from(digit - b'0') * scale)?;
    }
    Some(ns)
}

/// A request whose end fits an address.
pub fn request(at: Ns, op: Op, device: u64, offset: u64, bytes: u64) -> Result<Option<Request>, FieldError> {
    match offset.checked_add(bytes).filter(|end| *end <= 1 << 60 && bytes <= 1 << 40) {
        Some(_) => Ok(Some(Request { at, op, device, offset, bytes })),
        None => {
            let text = format!("{offset}+{bytes}");
            Err(FieldError::new("offset and size", Some(&text), "at most 2^40 bytes that end within 2^60"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_whole_and_what_is_shortened_says_so() {
        let error = request(0, Op::Read, 0, u64::MAX, u64::MAX).unwrap_err();
        assert_eq!(error.found, "`18446744073709551615+18446744073709551615`");
        let long = FieldError::new("size", Some(&"9".repeat(60)), "a number");
        assert_eq!(long.found, format!("`{}…` (60 characters)", "9".repeat(48)));
        assert_eq!(FieldError::new("size", Some(&"é".repeat(48)), "a number").found, format!("`{}`", "é".repeat(48)));
    }

    #[test]
    fn times_are_exact() {
        assert_eq!(parse_time("15849.28847", 1_000_000), Some(15_849_288_470));
        assert_eq!(parse_time("0.000000001", 1_000_000_000), Some(1));
        assert_eq!(parse_time("1.5e2", 1_000), Some(150_000));
        for bad in ["", "-1", "nan", "inf", "1e300", "99999999999999999999"] {
            assert_eq!(parse_time(bad, 1_000), None, "{bad}");
        }
    }
}
