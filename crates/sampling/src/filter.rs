//! Conditions on records: `status >= 500 and (method = 'GET' or not path ~ '^/api')`.
//!
//! A number compares as a number, a quoted text byte by byte. A comparison of null, or of a text with a number, is neither
//! true nor false but unknown, as in SQL, and so is its negation by `not` or `!=`. A record matches where the condition is
//! true; `is null` and `is number` are always known.

use crate::error::Error;
use crate::question::{FieldValue, number};
use regex::bytes::Regex;

/// A condition.
#[derive(Debug, Clone)]
pub struct Filter {
    fields: Vec<String>,
    node: Node,
}

#[derive(Debug, Clone)]
enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    IsNull(usize),
    IsNumber(usize),
    Number(usize, Comparison, f64),
    Whole(usize, Comparison, i128),
    Text(usize, Comparison, Vec<u8>),
    Matches(usize, Regex),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

impl Comparison {
    fn holds<T: PartialOrd + ?Sized>(self, a: &T, b: &T) -> bool {
        match self {
            Comparison::Equal => a == b,
            Comparison::Unequal => a != b,
            Comparison::Less => a < b,
            Comparison::AtMost => a <= b,
            Comparison::Greater => a > b,
            Comparison::AtLeast => a >= b,
        }
    }
}

impl Filter {
    /// Reads a condition.
    ///
    /// # Errors
    /// Says which part is not understood.
    pub fn parse(text: &str) -> Result<Filter, Error> {
        let wrong = |message: String| Error::Question(format!("--where '{text}': {message}"));
        let mut parser = Parser { tokens: tokens(text).map_err(wrong)?, at: 0, fields: Vec::new(), depth: 0 };
        let node = parser.or().map_err(wrong)?;
        match parser.peek() {
            None => Ok(Filter { fields: parser.fields, node }),
            Some(token) => Err(wrong(format!("`{}` is one too many", token.text))),
        }
    }

    /// Names of the fields; [`Filter::matches`] asks for them by number.
    pub fn fields(&self) -> Vec<String> {
        self.fields.clone()
    }

    /// A record matches, of which `field` gives the fields.
    pub fn matches<'a>(&self, field: &dyn Fn(usize) -> FieldValue<'a>) -> bool {
        self.node.matches(field) == Some(true)
    }
}

impl Node {
    /// `None` if it is unknown.
    fn matches<'a>(&self, field: &dyn Fn(usize) -> FieldValue<'a>) -> Option<bool> {
        match self {
            Node::And(nodes) => first_or_unknown(nodes, field, false),
            Node::Or(nodes) => first_or_unknown(nodes, field, true),
            Node::Not(node) => node.matches(field).map(|holds| !holds),
            Node::IsNull(at) => Some(field(*at) == FieldValue::Null),
            Node::IsNumber(at) => Some(field(*at).number().is_some()),
            Node::Number(at, comparison, with) => field(*at).number().map(|value| comparison.holds(&value, with)),
            Node::Whole(at, comparison, with) => match whole(field(*at)) {
                Some(value) => Some(comparison.holds(&value, with)),
                None => field(*at).number().map(|value| comparison.holds(&value, &(*with as f64))),
            },
            Node::Text(at, comparison, with) => field(*at).with_text(|value| comparison.holds(value, with.as_slice())),
            Node::Matches(at, regex) => field(*at).with_text(|value| regex.is_match(value)),
        }
    }
}

/// `decides` if one of the nodes is so, whatever the others are; else unknown if one is unknown.
fn first_or_unknown<'a>(nodes: &[Node], field: &dyn Fn(usize) -> FieldValue<'a>, decides: bool) -> Option<bool> {
    let mut found = Some(!decides);
    for node in nodes {
        match node.matches(field) {
            Some(holds) if holds == decides => return Some(decides),
            Some(_) => {}
            None => found = None,
        }
    }
    found
}

/// Whole numbers from here on are not told from their neighbours as floating-point numbers.
const EXACT_FLOATS: u128 = 1 << 53;

/// The value as a whole number, if it is written as one.
fn whole(value: FieldValue<'_>) -> Option<i128> {
    match value {
        FieldValue::Integer(value) => Some(value.into()),
        FieldValue::Text(text) => std::str::from_utf8(text).ok()?.trim().parse().ok(),
        FieldValue::Null | FieldValue::Float(_) => None,
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    text: String,
    quoted: bool,
}

impl Token {
    fn is(&self, word: &str) -> bool {
        !self.quoted && self.text.eq_ignore_ascii_case(word)
    }
}

const SYMBOLS: [&str; 10] = ["!=", "<=", ">=", "=", "<", ">", "~", "(", ")", "<>"];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let symbol = SYMBOLS.iter().filter(|symbol| rest.starts_with(**symbol)).max_by_key(|symbol| symbol.len());
        let (token, used) = if first == '\'' || first == '"' {
            quoted(rest, first)?
        } else if let Some(symbol) = symbol {
            (Token { text: symbol.to_string(), quoted: false }, symbol.len())
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || "!<>=~()'\"".contains(c)).unwrap_or(rest.len());
            if end == 0 {
                return Err(format!("`{first}` is no comparison; known are {}", SYMBOLS.join(" ")));
            }
            (Token { text: rest[..end].to_string(), quoted: false }, end)
        };
        tokens.push(token);
        rest = rest[used..].trim_start();
    }
    Ok(tokens)
}

/// A quoted text, in which a doubled quote stands for one.
fn quoted(rest: &str, quote: char) -> Result<(Token, usize), String> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c != quote {
            text.push(c);
        } else if chars.next_if(|(_, next)| *next == quote).is_some() {
            text.push(quote);
        } else {
            return Ok((Token { text, quoted: true }, at + 1));
        }
    }
    Err(format!("the quote in `{rest}` does not end"))
}

/// Nesting of a condition at most: it is read by recursion.
const MAX_DEPTH: usize = 100;

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    fields: Vec<String>,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self, expected: &str) -> Result<Token, String> {
        let token = self.peek().cloned().ok_or_else(|| format!("it ends where {expected} is expected"))?;
        self.at += 1;
        Ok(token)
    }

    fn skip(&mut self, word: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.is(word));
        self.at += usize::from(found);
        found
    }

    fn or(&mut self) -> Result<Node, String> {
        let mut nodes = vec![self.and()?];
        while self.skip("or") {
            nodes.push(self.and()?);
        }
        Ok(Node::Or(nodes))
    }

    fn and(&mut self) -> Result<Node, String> {
        let mut nodes = vec![self.single()?];
        while self.skip("and") {
            nodes.push(self.single()?);
        }
        Ok(Node::And(nodes))
    }

    fn single(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        let node = if self.skip("not") {
            Node::Not(Box::new(self.single()?))
        } else if self.skip("(") {
            let node = self.or()?;
            if !self.skip(")") {
                return Err("a `)` is missing".to_string());
            }
            node
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn comparison(&mut self) -> Result<Node, String> {
        let name = self.next("a field")?;
        if SYMBOLS.contains(&name.text.as_str()) && !name.quoted {
            return Err(format!("`{}` stands where a field is expected", name.text));
        }
        let named = name.text.clone();
        let field = self.field(name.text);
        let operator = self.next("a comparison")?;
        if operator.is("is") {
            return self.is(field);
        }
        let comparison = match operator.text.as_str() {
            "=" => Comparison::Equal,
            "!=" | "<>" => Comparison::Unequal,
            "<" => Comparison::Less,
            "<=" => Comparison::AtMost,
            ">" => Comparison::Greater,
            ">=" => Comparison::AtLeast,
            "~" => {
                let expression = self.next("an expression")?.text;
                let regex = Regex::new(&expression);
                return regex.map(|regex| Node::Matches(field, regex)).map_err(|error| error.to_string());
            }
            other => {
                return Err(format!(
                    "`{other}` is no comparison; known are = != < <= > >= ~ and `is [not] null|number`"
                ));
            }
        };
        let with = self.next("a value")?;
        if with.is("null") {
            return Err(format!(
                "a comparison with null is never true; write `{named} is null` or `{named} is not null`, or 'null' for that text"
            ));
        }
        Ok(match number(with.text.as_bytes()).filter(|_| !with.quoted) {
            Some(value) => match whole(FieldValue::Text(with.text.as_bytes())) {
                Some(whole) if whole.unsigned_abs() >= EXACT_FLOATS => Node::Whole(field, comparison, whole),
                _ => Node::Number(field, comparison, value),
            },
            None => Node::Text(field, comparison, with.text.into_bytes()),
        })
    }

    fn is(&mut self, field: usize) -> Result<Node, String> {
        let negated = self.skip("not");
        let what = self.next("`null` or `number`")?;
        let node = match () {
            _ if what.is("null") => Node::IsNull(field),
            _ if what.is("number") => Node::IsNumber(field),
            _ => return Err(format!("`is {}` is unknown; known are `is null` and `is number`", what.text)),
        };
        Ok(if negated { Node::Not(Box::new(node)) } else { node })
    }

    fn field(&mut self, name: String) -> usize {
        self.fields.iter().position(|field| *field == name).unwrap_or_else(|| {
            self.fields.push(name);
            self.fields.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holds(filter: &str, a: Option<&[u8]>, b: Option<&[u8]>) -> bool {
        let filter = Filter::parse(filter).unwrap();
        let (a, b) = (FieldValue::of(a), FieldValue::of(b));
        filter.matches(&|i| if filter.fields[i] == "a" { a } else { b })
    }

    #[test]
    fn comparisons_mean_what_they_say() {
        let (a, b) = (Some(&b"12"[..]), Some(&b"GET"[..]));
        for yes in [
            "a = 12",
            "a = 12.0",
            "a>=12 and b='GET'",
            "a < 5 or b ~ '^G'",
            "not (a < 5)",
            "a != 3",
            "b = \"GET\"",
            "b = GET",
            "a is number",
            "b is not number",
            "b is not null",
            "a<>1",
            "a = '12'",
        ] {
            assert!(holds(yes, a, b), "{yes}");
        }
        for no in ["a > 12", "a = '12.0'", "b = 12", "b != 12", "a < 5 and b ~ '^G'", "b is null", "b ~ '^T'"] {
            assert!(!holds(no, a, b), "{no}");
        }
        assert!(!holds("a = 1", None, None) && !holds("a != 1", None, None) && holds("a is null", None, None));
        assert!(holds("b = 'it''s'", None, Some(b"it's")));
    }

    /// As in SQL: what compares with null is unknown, and a record of which the condition is unknown does not match.
    #[test]
    fn a_comparison_with_null_is_unknown_and_not_leaves_it_so() {
        let holds = |filter: &str| holds(filter, None, Some(b"GET"));
        for no in [
            "not a = 1",
            "not a != 1",
            "not (not a = 1)",
            "not a = 'x'",
            "not a > 9007199254740993",
            "not a ~ 'x'",
            "not b = 12",
            "a = 1 or b = 'PUT'",
            "not (a = 1 and b = GET)",
            "not (a = 1 or b = PUT)",
            "not a is null",
        ] {
            assert!(!holds(no), "{no}");
        }
        for yes in [
            "not (a = 1 and b = 'PUT')",
            "not (b = 'PUT' and a = 1)",
            "a = 1 or b = GET",
            "not a is not null",
            "not a is number",
            "a is not number",
            "a is null or not a = 1",
        ] {
            assert!(holds(yes), "{yes}");
        }
    }

    #[test]
    fn whole_numbers_beyond_those_of_floating_point_differ() {
        let (a, next) = ("9007199254740993", "9007199254740992");
        for field in [FieldValue::Text(a.as_bytes()), FieldValue::Integer(a.parse().unwrap())] {
            let holds = |filter: &str| Filter::parse(filter).unwrap().matches(&|_| field);
            assert!(holds(&format!("a = {a}")) && holds(&format!("a > {next}")) && holds(&format!("a != {next}")));
            assert!(!holds(&format!("a = {next}")) && !holds(&format!("a <= {next}")) && !holds(&format!("a < {a}")));
            assert!(holds("a > 5") && holds("a < 1e300") && holds("a >= -9223372036854775809"));
        }
        assert!(holds("a = 18446744073709551615", Some(b" 18446744073709551615 "), None));
        assert!(!holds("a = 18446744073709551615", Some(b"18446744073709551614"), None));
        assert!(holds("a = 9007199254740992", Some(b"9007199254740992.0"), None));
    }

    #[test]
    fn long_conditions_need_no_deep_stack() {
        for word in ["or", "and"] {
            let long = vec!["a != 9"; 200_000].join(&format!(" {word} "));
            let deep = std::thread::Builder::new().stack_size(256 << 10);
            let found = deep.spawn(move || holds(&long, Some(b"1"), None)).unwrap();
            assert!(found.join().unwrap());
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, part) in [
            ("a", "ends where a comparison"),
            ("a = ", "ends where a value"),
            ("= 3", "stands where a field"),
            ("a ? 3", "`?`"),
            ("(a = 3", "`)` is missing"),
            ("a = 3 b", "`b` is one too many"),
            ("a ~ '('", "unclosed group"),
            ("a = 'x", "does not end"),
            ("a is blue", "`is blue`"),
            ("a = null", "write `a is null`"),
            ("b = 1 or not a != NULL", "`a is not null`"),
            ("a < null", "never true"),
        ] {
            let error = Filter::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(Filter::parse(&"(".repeat(100_000)).unwrap_err().to_string().contains("nested"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[a-z0-9 ()'\"=<>!~]{0,40}|.{0,40}") {
            drop(Filter::parse(&text));
        }
    }
}
