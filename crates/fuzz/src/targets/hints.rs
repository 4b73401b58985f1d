//! Text of hints, by own and classic names, and of names of checkpoints. A value that is accepted has one canonical form, and a refusal
//! changes nothing and says what is allowed.

use crate::Target;
use crate::input::{Parts, split};
use crate::mutate::{index, number, one_in};
use tessera_disk::SplitMix64;
use tessera_policy::{CLASSIC, HINTS, Policy, StepName, canonical, format_size, hint_of_attribute, parse_size};

/// See the module.
pub const TARGET: Target = Target {
    name: "hints",
    run,
    seeds,
    adapt,
    runs: 25_000,
    base_bytes: 64 << 10,
    // Errors repeat the value, and tell the allowed ones.
    bytes_per_byte: 64,
};

/// Each part is a hint, `name=value`.
#[must_use]
pub fn run(input: &[u8]) -> String {
    let (mut policy, mut done) = (Policy::default(), String::new());
    for part in split(input) {
        let _ = StepName::parse(&part);
        let Ok(text) = std::str::from_utf8(&part) else { continue };
        if let Ok(bytes) = parse_size(text) {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes), "a size returns from its text");
        }
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        done += &set(&mut policy, name, value);
    }
    let hints = policy.to_hints();
    let again = Policy::from_hints(hints.iter().map(|(name, value)| (*name, value.as_str())));
    assert_eq!(again.as_ref(), Ok(&policy), "a policy returns from its hints");
    for bytes in [0, 1, 1 << 20, u64::MAX] {
        let scheme = policy.scheme(bytes);
        assert_eq!(scheme.to_string().parse(), Ok(scheme), "a scheme returns from its text");
        assert!((1..=255).contains(&scheme.fragments()) && scheme.needed() <= scheme.fragments(), "{scheme}");
    }
    assert!(policy.region_bytes() != Some(0) && policy.chunking.mean_bytes() > 0, "{policy:?}");
    CLASSIC.iter().for_each(|classic| assert!(!classic.value(&policy).is_empty(), "{}", classic.name));
    done
}

fn set(policy: &mut Policy, name: &str, value: &str) -> String {
    let before = policy.clone();
    match policy.set(name, value) {
        Ok(()) => {
            let once = canonical(name, value).expect("what is set has a canonical form");
            assert_eq!(canonical(once.0, &once.1), Ok(once.clone()), "a canonical form is its own");
            assert_eq!(hint_of_attribute(&format!("user.tessera.{name}")), Some(once.0));
            let found = policy.to_hints().into_iter().find(|(hint, _)| *hint == once.0);
            assert_eq!(found, Some(once.clone()), "a policy has what was set");
            format!("{}={};", once.0, once.1)
        }
        Err(error) => {
            assert_eq!(*policy, before, "a refused hint changes nothing");
            let text = error.to_string();
            assert!(text.contains("allowed") || text.contains("there are"), "{text}");
            let why = match error {
                tessera_policy::HintError::Value { name, why, .. } => format!("{name}: {}", shape(&why)),
                tessera_policy::HintError::UnknownName { .. } => "no hint".into(),
            };
            format!("{why};")
        }
    }
}

/// An error without the text that it repeats.
fn shape(why: &str) -> String {
    why.chars().filter(char::is_ascii_lowercase).take(40).collect()
}

/// Words that values are made of.
const WORDS: [&str; 36] = [
    "auto",
    "none",
    "replica:",
    "ec:",
    "raid6:",
    "copy+ec:",
    "+",
    "cdc:",
    "..",
    "fixed:",
    "cbch:",
    ",",
    "spread",
    "local",
    "collocate:",
    "scatter:",
    "chunks",
    "collocation",
    "|",
    " ",
    "K",
    "M",
    "G",
    "T",
    "iB",
    "keep",
    "replace",
    "purge:",
    "s",
    "d",
    ".N",
    ".T",
    "é",
    "\u{0}",
    "-1",
    "0",
];

fn seeds() -> Vec<Parts> {
    let own = HINTS.iter().map(|hint| format!("{}={}", hint.name, hint.default));
    let more = [
        "redundancy=copy+ec:4+2",
        "redundancy=raid6:8+2",
        "redundancy=replica:3",
        "chunking=fixed:1M",
        "chunking=cbch:20,14,20",
        "placement=collocate:merge 7",
        "placement=scatter:4chunks",
        "placement=scatter:1M",
        "cache=16M",
        "lifetime=purge:12h",
        "lifetime=replace:3",
        "DP=scatter | 4",
        "DP=collocation | g",
        "Replication=8",
        "RepSmntc=Optimistic",
        "CacheSize=16M",
        "BlockSize=1M",
        "sim.N12.T3",
    ];
    own.chain(more.map(String::from)).map(|text| vec![text.into_bytes()]).collect()
}

/// Inserts words and replaces numbers.
fn adapt(parts: &mut Parts, rng: &mut SplitMix64) {
    let at = index(rng, parts.len());
    let Some(text) = parts.get(at).and_then(|part| String::from_utf8(part.clone()).ok()) else { return };
    let from = text.char_indices().map(|(at, _)| at).nth(index(rng, text.len())).unwrap_or(0);
    let (before, after) = text.split_at(from);
    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    parts[at] = match rng.below(3) {
        0 => format!("{before}{}{after}", WORDS[index(rng, WORDS.len())]),
        1 if rest.len() < after.len() => {
            let now = after[..after.len() - rest.len()].parse().unwrap_or(0);
            let next = if one_in(rng, 2) { rng.below(300) } else { number(rng, now, 0) };
            format!("{before}{next}{rest}")
        }
        _ => return,
    }
    .into_bytes();
}
