//! Text as it can be shown on a terminal. Names, hosts and messages of others may hold characters that move the cursor or
//! turn the direction of writing around (Unicode Technical Report 36, section 3); they are escaped in all output.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` with its control and format characters escaped as in Rust (`\n`, `\u{202e}`).
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |out, c| out.extend(c.escape_default()))
}

/// A JSON document with such characters as `\uNNNN`: the same document.
pub fn printable_json(document: &str) -> Cow<'_, str> {
    escaped(document, |out, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

/// A name: bytes that are not UTF-8 become `\xNN`.
pub fn name_text(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for piece in name.utf8_chunks() {
        text.push_str(&printable(piece.valid()));
        piece.invalid().iter().for_each(|b| text.push_str(&format!("\\x{b:02x}")));
    }
    text
}

fn escaped(text: &str, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_unsafe(c) {
            true => escape(&mut out, c),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Whether a terminal may act on a character instead of showing it: the categories Cc, Cf, Zl and Zp of Unicode 16.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// Text without characters that HTML acts on.
pub fn html_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_play_tricks_on_a_terminal() {
        assert_eq!(name_text(b"plain \xc3\xa4"), "plain ä");
        assert_eq!(name_text(b"a\nb\x1b[2J\xff"), "a\\nb\\u{1b}[2J\\xff");
        assert_eq!(
            name_text("gpj.\u{202e}exe\u{9b}31m\u{2066}\u{200b}".as_bytes()),
            r"gpj.\u{202e}exe\u{9b}31m\u{2066}\u{200b}"
        );
        assert!(matches!(printable("nothing to do: é 漢 😀"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_document_keeps_its_meaning() {
        let value = serde_json::json!({"name": "a\u{202e}b\u{7f}\u{e0041}\n"});
        let text = printable_json(&value.to_string()).into_owned();
        assert_eq!(text, r#"{"name":"a\u202eb\u007f\udb40\udc41\n"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
