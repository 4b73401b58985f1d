//! The daemons' configuration keys by name: set from a file or `--set`, and printed into docs/config.md. Each crate
//! declares its own keys in its `config.rs` ([`tessera_knobs::knobs!`]).

use tessera_knobs::Knob;
use toml::Value;

/// Configuration keys, and what they set.
pub trait Keys {
    /// The names of all keys.
    fn keys(&self) -> Vec<&'static str>;
    /// Sets `key`. `None`: there is no such key.
    fn set_key(&mut self, key: &str, value: &Value) -> Option<Result<(), String>>;
}

impl<T> Keys for (&[Knob<T>], &mut T) {
    fn keys(&self) -> Vec<&'static str> {
        self.0.iter().map(|knob| knob.key).collect()
    }

    fn set_key(&mut self, key: &str, value: &Value) -> Option<Result<(), String>> {
        self.0.iter().find(|knob| knob.key == key).map(|knob| assign(knob, self.1, value))
    }
}

/// Sets a key of the first configuration that has it.
///
/// # Errors
/// Names the key, the fact and the way out.
pub fn set(configs: &mut [&mut dyn Keys], key: &str, value: &Value) -> Result<(), String> {
    let outcome = configs.iter_mut().find_map(|config| config.set_key(key, value));
    outcome.unwrap_or_else(|| {
        let keys = configs.iter().flat_map(|config| config.keys());
        let near = keys.max_by_key(|k| likeness(k, key)).unwrap_or_default();
        Err(format!("no key is called {key:?}; did you mean {near}? docs/config.md lists them"))
    })
}

fn assign<T>(knob: &Knob<T>, target: &mut T, value: &Value) -> Result<(), String> {
    let (key, unit, help) = (knob.key, knob.unit(), knob.help.trim().trim_end_matches('.'));
    let number = match value {
        Value::Integer(number) => u64::try_from(*number).ok(),
        Value::String(text) if unit.starts_with("bytes") => tessera_policy::parse_size(text).ok(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let now = (knob.get)(target);
    let wrong = || {
        let what = match unit {
            "" => "a count".to_string(),
            "bytes" | "bytes/s" => format!("a number of {unit} (K, M, G, T may follow)"),
            unit => format!("a number of {unit}"),
        };
        format!("{key} cannot be {value}: write {what}, as in {key} = {now} ({help})")
    };
    let number = number.ok_or_else(wrong)?;
    if !knob.range.contains(&number) {
        return Err(format!("{key} cannot be {number}; write {}, as in {key} = {now} ({help})", range_text(knob)));
    }
    match (knob.set)(target, number) {
        true => Ok(()),
        false => Err(wrong()),
    }
}

/// The values that a key accepts, as text.
fn range_text<T>(knob: &Knob<T>) -> String {
    let text = |number: u64| match knob.unit().starts_with("bytes") {
        true => tessera_policy::format_size(number),
        false => number.to_string(),
    };
    let (least, most) = (text(*knob.range.start()), *knob.range.end());
    if most == u64::MAX { format!("{least} or more") } else { format!("{least} to {}", text(most)) }
}

/// Similarity of two words: the share of letter pairs that they have in common (Dice's coefficient), in thousandths.
fn likeness(a: &str, b: &str) -> usize {
    let common = a.as_bytes().windows(2).filter(|pair| b.as_bytes().windows(2).any(|other| other == *pair)).count();
    2_000 * common / (a.len() + b.len()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use tessera_manager::config::Config;

    fn table<T: Default>(knobs: &[Knob<T>]) -> String {
        let mut text = String::new();
        for knob in knobs {
            let default = (knob.get)(&T::default());
            assert!(knob.range.contains(&default), "the default of {} is out of its range", knob.key);
            let zero_is_said = knob.help.contains("0: ");
            assert_eq!(knob.range.contains(&0), zero_is_said, "{}: say what 0 means, or exclude it", knob.key);
            let shown = match knob.unit().starts_with("bytes") {
                true => tessera_policy::format_size(default),
                false => default.to_string(),
            };
            let help = knob.help.trim().trim_end_matches('.');
            writeln!(text, "| `{}` | {shown} | {} | {} | {help} |", knob.key, knob.unit(), range_text(knob)).unwrap();
        }
        text
    }

    /// docs/config.md shows exactly these keys. `REWRITE_DOCS=1` rewrites its tables.
    #[test]
    fn the_documentation_lists_every_key_with_unit_range_and_default() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
        let mut text = std::fs::read_to_string(path).unwrap();
        let node = table(tessera_node::NodeConfig::KNOBS) + &table(tessera_segment::Options::KNOBS);
        let client = table(tessera_client::Options::KNOBS);
        for (name, rows) in [("manager", table(Config::KNOBS)), ("node", node), ("client", client)] {
            let table = format!("| key | default | unit | range | meaning |\n|---|---|---|---|---|\n{rows}");
            let (start, end) = (format!("<!-- knobs: {name} -->\n"), format!("<!-- end: {name} -->"));
            let from = text.find(&start).expect("start mark") + start.len();
            let to = text[from..].find(&end).expect("end mark") + from;
            if std::env::var_os("REWRITE_DOCS").is_some() {
                text.replace_range(from..to, &table);
                std::fs::write(path, &text).unwrap();
            } else {
                assert_eq!(&text[from..to], table, "run this test with REWRITE_DOCS=1 and read the difference");
            }
        }
    }

    #[test]
    fn zero_is_accepted_where_it_has_a_meaning() {
        let mut config = Config::default();
        let zero = Value::String("0".into());
        let refused = set(&mut [&mut (Config::KNOBS, &mut config)], "max_list_entries", &zero).unwrap_err();
        assert!(refused.contains("max_list_entries cannot be 0") && config.max_list_entries == 4096, "{refused}");
        set(&mut [&mut (Config::KNOBS, &mut config)], "repair_bytes_per_s", &zero).unwrap();
    }

    #[test]
    fn a_number_out_of_range_changes_nothing() {
        let mut config = Config::default();
        for value in [Value::Integer(1 << 40), Value::Integer(-1), Value::Boolean(true), Value::String("x".into())] {
            assert!(set(&mut [&mut (Config::KNOBS, &mut config)], "max_list_entries", &value).is_err());
        }
        assert_eq!(config, Config::default());
        set(&mut [&mut (Config::KNOBS, &mut config)], "pg_cap_bytes", &Value::String("1G".into())).unwrap();
        assert_eq!(config.pg_cap_bytes, 1 << 30);
        let (mut node, mut segments) = (tessera_node::NodeConfig::default(), tessera_segment::Options::default());
        let mut keys: [&mut dyn Keys; 2] =
            [&mut (tessera_node::NodeConfig::KNOBS, &mut node), &mut (tessera_segment::Options::KNOBS, &mut segments)];
        let refused = set(&mut keys, "compact_dead_percent", &Value::Integer(101)).unwrap_err();
        assert!(refused.contains("1 to 100"), "{refused}");
        set(&mut keys, "segment_size_bytes", &Value::String("8M".into())).unwrap();
        assert_eq!(segments.segment_size_bytes, 8 << 20);
    }
}
