//! Hints: their names, values and defaults, and the redundancy classes they name.
//!
//! [`HINTS`] is the one registry of hints: the manager validates attributes with it, the client reads a file's policy
//! with it, the command line prints its help from it. A [`Policy`] is a file's resolved hints. This crate does no I/O.
//! Start at [`HINTS`]. A new hint is one row there, one field of [`Policy`], and a row in the tables of docs/hints.md
//! and README.md; a test checks the tables.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod chunking;
mod classic;
mod lifetime;
mod placement;
mod redundancy;
mod size;

pub use chunking::{Chunking, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES};
pub use classic::{CLASSIC, Classic};
pub use lifetime::{Lifetime, StepName, obsolete_steps};
pub use placement::{Placement, Region};
pub use redundancy::{Redundancy, RedundancyError, Scheme};
pub use size::{SizeError, format_size, human_size, parse_size};

use std::fmt;
use thiserror::Error;

/// Attribute names of hints start with this.
pub const PREFIX: &str = "user.tessera.";

/// `redundancy=auto` stores a file of at most this many bytes as copies, and codes a longer one.
///
/// At 4+2 a small chunk costs six records and six syncs instead of three. Below this size the disk space
/// that coding saves (half of it) is worth less than the operations.
pub const AUTO_THRESHOLD_BYTES: u64 = 128 << 10;

/// Values of `redundancy`, for people.
pub const SCHEMES: &str =
    "none, replica:N (2..=16), ec:K+M (K>=1, M>=1, K+M<=255), raid6:K+2 (K 2..=31), copy+ec:K+M (K>=2), auto, auto:K+M";

/// Why a hint was refused (P14).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HintError {
    /// No such hint.
    #[error("no hint is called {name:?}; there are: {known}")]
    UnknownName {
        /// The given name.
        name: String,
        /// All names.
        known: String,
    },
    /// The value is not allowed.
    #[error("hint {name} cannot be {value:?}: {why}; allowed: {allowed}")]
    Value {
        /// Hint.
        name: &'static str,
        /// The given value.
        value: String,
        /// What is wrong with it.
        why: String,
        /// The allowed values.
        allowed: &'static str,
    },
}

/// A hint: name, allowed values, default, meaning.
pub struct HintSpec {
    /// Name without [`PREFIX`].
    pub name: &'static str,
    /// Allowed values, for people.
    pub allowed: &'static str,
    /// Default value, in canonical form.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Whether the hint decides how bytes are stored. When such a hint of a file changes, a mount rewrites the file.
    pub affects_stored_bytes: bool,
    /// Checks a value and sets it in a policy.
    set: fn(&mut Policy, &str) -> Result<(), String>,
    /// The policy's value in canonical form.
    get: fn(&Policy) -> String,
}

/// All hints, in the order they are shown.
pub const HINTS: &[HintSpec] = &[
    HintSpec {
        name: "redundancy",
        allowed: SCHEMES,
        default: "auto:4+2",
        help: "how many losses a file survives, and at what price; auto = M+1 copies up to 128 KiB, ec:K+M above, \
               copy+ec:K+M if it is to be on one host (placement local or collocate)",
        affects_stored_bytes: true,
        set: |p, v| v.parse().map(|r| p.redundancy = r).map_err(|e: RedundancyError| e.to_string()),
        get: |p| p.redundancy.to_string(),
    },
    HintSpec {
        name: "chunking",
        allowed: "cdc:MIN..MAX, fixed:SIZE or cbch:M,K,P, sizes and means from 4K to 8M",
        default: "cdc:256K..4M",
        help: "where chunks are cut; cdc cuts by content with a mean of sqrt(MIN*MAX)",
        affects_stored_bytes: true,
        set: |p, v| Chunking::parse(v).map(|c| p.chunking = c),
        get: |p| p.chunking.to_string(),
    },
    HintSpec {
        name: "placement",
        allowed: "spread, local, collocate:GROUP (1..=64 bytes), scatter:SIZE (from 4K), scatter:Nchunks (N>=1)",
        default: "spread",
        help: "on which hosts a file's own bytes go: any, the writer's, one for all files of GROUP, or region after region on the next",
        affects_stored_bytes: true,
        set: |p, v| Placement::parse(v).map(|placement| p.placement = placement),
        get: |p| p.placement.to_string(),
    },
    HintSpec {
        name: "durability",
        allowed: "pessimistic, optimistic",
        default: "pessimistic",
        help: "acknowledge when every fragment is synced, or when the file can be read and let redundancy follow",
        affects_stored_bytes: false,
        set: |p, v| Durability::parse(v).map(|d| p.durability = d),
        get: |p| p.durability.to_string(),
    },
    HintSpec {
        name: "write-mode",
        allowed: "sliding-window, incremental, complete-local",
        default: "sliding-window",
        help: "where a mount holds a file while it is written: memory; a few bounded local files, pushed in turn; or one local file, \
               pushed after close",
        affects_stored_bytes: false,
        set: |p, v| WriteMode::parse(v).map(|mode| p.write_mode = mode),
        get: |p| p.write_mode.to_string(),
    },
    HintSpec {
        name: "dedup",
        allowed: "all, version, off",
        default: "all",
        help: "look for known chunks everywhere, only in the file's own versions, or not at all",
        affects_stored_bytes: false,
        set: |p, v| Dedup::parse(v).map(|d| p.dedup = d),
        get: |p| p.dedup.to_string(),
    },
    HintSpec {
        name: "cache",
        allowed: "auto, none, SIZE",
        default: "auto",
        help: "memory that clients keep this file's chunks in: a share of their cache, none once it is read, or at most so much",
        affects_stored_bytes: false,
        set: |p, v| Cache::parse(v).map(|c| p.cache = c),
        get: |p| p.cache.to_string(),
    },
    HintSpec {
        name: "lifetime",
        allowed: "keep, replace, replace:N (N>=1), purge:DURATION (1s to 10000d; s, m, h, d)",
        default: "replace:1",
        help: "versions kept when a new one is committed: all, or the newest N; purge: the file goes so long after it was last written. \
               Set on a directory, replace:N also keeps the newest N complete time steps of checkpoints named A.Ni.Tj",
        affects_stored_bytes: false,
        set: |p, v| Lifetime::parse(v).map(|l| p.lifetime = l),
        get: |p| p.lifetime.to_string(),
    },
    HintSpec {
        name: "degraded-writes",
        allowed: "no, yes",
        default: "no",
        help: "when too few hosts are up, write with at least one fragment of redundancy rather than fail",
        affects_stored_bytes: false,
        set: |p, v| word(v, &[("no", false), ("yes", true)]).map(|d| p.degraded_writes = d),
        get: |p| if p.degraded_writes { "yes" } else { "no" }.to_string(),
    },
];

/// Declares an enum whose values are words of a hint.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$help:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$help])* $value,)+
        }

        impl $name {
            /// The word in a hint.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$value => $word,)+
                }
            }

            fn parse(value: &str) -> Result<Self, String> {
                word(value, &[$(($word, $name::$value)),+])
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

words! {
    /// When a write is acknowledged.
    Durability {
        /// Every fragment is synced.
        Pessimistic = "pessimistic",
        /// Enough fragments are synced to read the file; redundancy follows.
        Optimistic = "optimistic",
    }
}

words! {
    /// Where a mount holds a file's bytes before they are stored (stdchk: dissertation, section 3.5.3.2).
    WriteMode {
        /// In memory: they are sent while the application writes.
        SlidingWindow = "sliding-window",
        /// In local files of bounded length; each is pushed while the next one fills.
        Incremental = "incremental",
        /// In one local file, pushed after close.
        CompleteLocal = "complete-local",
    }
}

words! {
    /// Where the client looks for chunks that are stored already.
    Dedup {
        /// In the whole class and domain.
        All = "all",
        /// In the versions of the same file.
        Version = "version",
        /// Nowhere: every chunk is stored again.
        Off = "off",
    }
}

/// How much of a file clients cache in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// As much as its use warrants, in competition with other files.
    Auto,
    /// At most this many bytes; while the file is read, read-ahead comes on top.
    Limit {
        /// Limit; 0: nothing stays cached.
        bytes: u64,
    },
}

impl Cache {
    fn parse(value: &str) -> Result<Self, String> {
        match value {
            "auto" => Ok(Cache::Auto),
            "none" => Ok(Cache::Limit { bytes: 0 }),
            size => parse_size(size).map(|bytes| Cache::Limit { bytes }).map_err(|e| e.to_string()),
        }
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cache::Auto => f.write_str("auto"),
            Cache::Limit { bytes: 0 } => f.write_str("none"),
            Cache::Limit { bytes } => f.write_str(&format_size(*bytes)),
        }
    }
}

/// A file's resolved hints: those that were set, and defaults for the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// See [`HINTS`].
    pub redundancy: Redundancy,
    /// See [`HINTS`].
    pub chunking: Chunking,
    /// See [`HINTS`].
    pub placement: Placement,
    /// See [`HINTS`].
    pub durability: Durability,
    /// See [`HINTS`].
    pub write_mode: WriteMode,
    /// See [`HINTS`].
    pub dedup: Dedup,
    /// See [`HINTS`].
    pub cache: Cache,
    /// See [`HINTS`].
    pub lifetime: Lifetime,
    /// See [`HINTS`].
    pub degraded_writes: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            redundancy: Redundancy::Auto { k: 4, m: 2 },
            chunking: Chunking::Cdc { min_bytes: 256 << 10, max_bytes: 4 << 20 },
            placement: Placement::Spread,
            durability: Durability::Pessimistic,
            write_mode: WriteMode::SlidingWindow,
            dedup: Dedup::All,
            cache: Cache::Auto,
            lifetime: Lifetime::Replace { versions: 1 },
            degraded_writes: false,
        }
    }
}

impl Policy {
    /// Defaults, overridden by `hints` in order (name without prefix, value).
    ///
    /// # Errors
    /// The first hint with an unknown name or a malformed value.
    pub fn from_hints<'a>(hints: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, HintError> {
        let mut policy = Policy::default();
        for (name, value) in hints {
            policy.set(name, value)?;
        }
        Ok(policy)
    }

    /// Sets one hint.
    ///
    /// # Errors
    /// Unknown name or malformed value; the policy is unchanged then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), HintError> {
        let (own, translated) = match classic::find(name) {
            Some(classic) => (classic.hint, (classic.read)(value.trim()).map_err(|why| classic.error(value, why))?),
            None => (name, value.trim().to_string()),
        };
        let spec = spec(own)?;
        (spec.set)(self, &translated).map_err(|why| HintError::Value {
            name: spec.name,
            value: value.to_string(),
            why,
            allowed: spec.allowed,
        })
    }

    /// How new chunks of the file are stored when it has `file_bytes`.
    pub fn scheme(&self, file_bytes: u64) -> Scheme {
        self.redundancy.scheme(file_bytes, &self.placement)
    }

    /// Region length of a file whose regions go to different hosts (`placement=scatter`).
    pub fn region_bytes(&self) -> Option<u64> {
        match self.placement {
            Placement::Scatter(Region::Bytes(bytes)) => Some(bytes),
            Placement::Scatter(Region::Chunks(count)) => Some(count.saturating_mul(self.chunking.mean_bytes())),
            _ => None,
        }
    }

    /// All hints in canonical form, in the order of [`HINTS`].
    pub fn to_hints(&self) -> Vec<(&'static str, String)> {
        HINTS.iter().map(|h| (h.name, (h.get)(self))).collect()
    }
}

/// The canonical form of a hint (its own name and value), which may be given by a classic name.
///
/// # Errors
/// Unknown name or malformed value.
pub fn canonical(name: &str, value: &str) -> Result<(&'static str, String), HintError> {
    let mut policy = Policy::default();
    policy.set(name, value)?;
    let spec = spec(own_name(name))?;
    Ok((spec.name, (spec.get)(&policy)))
}

/// The hint's own name for an extended attribute: `placement` for `user.tessera.placement` and `user.DP`. A name
/// that starts with [`PREFIX`] counts as a hint, even if there is no such hint.
pub fn hint_of_attribute(attribute: &str) -> Option<&str> {
    match attribute.strip_prefix(PREFIX) {
        Some(name) => Some(own_name(name)),
        None => classic::find(attribute.strip_prefix("user.")?).map(|classic| classic.hint),
    }
}

/// A hint's own name, which may be given by a classic name.
pub fn own_name(name: &str) -> &str {
    classic::find(name).map_or(name, |classic| classic.hint)
}

/// Whether a hint (by its own name) decides how bytes are stored; false if there is no such hint.
pub fn affects_stored_bytes(hint: &str) -> bool {
    spec(hint).is_ok_and(|spec| spec.affects_stored_bytes)
}

fn spec(name: &str) -> Result<&'static HintSpec, HintError> {
    HINTS.iter().find(|h| h.name == name).ok_or_else(|| HintError::UnknownName {
        name: name.to_string(),
        known: HINTS.iter().map(|h| h.name).collect::<Vec<_>>().join(", "),
    })
}

fn word<T: Copy>(value: &str, words: &[(&str, T)]) -> Result<T, String> {
    words.iter().find(|(w, _)| *w == value).map(|(_, t)| *t).ok_or_else(|| "not one of the words".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_the_table_and_of_the_struct_agree() {
        for (spec, (name, value)) in HINTS.iter().zip(Policy::default().to_hints()) {
            assert_eq!((spec.name, spec.default), (name, value.as_str()));
            assert_eq!(canonical(spec.name, spec.default).unwrap(), (spec.name, spec.default.to_string()));
        }
    }

    #[test]
    fn the_documents_list_every_hint_with_its_default() {
        let hints = include_str!("../../../docs/hints.md");
        let readme = include_str!("../../../README.md");
        let row = |document: &str, name: &str| {
            document.lines().find(|line| line.starts_with(&format!("| `{name}` | "))).unwrap_or_default().to_string()
        };
        for HintSpec { name, default, .. } in HINTS {
            // docs/hints.md has the default first among the values; README.md has it in its own column.
            assert!(
                row(hints, name).starts_with(&format!("| `{name}` | `{default}`")),
                "docs/hints.md: {name}={default}"
            );
            assert!(row(readme, name).contains(&format!("| `{default}`")), "README.md: {name}={default}");
        }
    }

    #[test]
    fn good_values_have_one_canonical_form() {
        for (name, value, expected) in [
            ("redundancy", "auto", "auto:4+2"),
            ("redundancy", "auto:8+3", "auto:8+3"),
            ("redundancy", "ec:4+2", "ec:4+2"),
            ("redundancy", "replica:3", "replica:3"),
            ("redundancy", "copy+ec:04+2", "copy+ec:4+2"),
            ("redundancy", "raid6:8+02", "raid6:8+2"),
            ("redundancy", "none", "none"),
            ("chunking", "fixed:1048576", "fixed:1M"),
            ("chunking", "cdc:65536..1M", "cdc:64K..1M"),
            ("chunking", "cbch:20, 14,20", "cbch:20,14,20"),
            ("lifetime", "replace", "replace:1"),
            ("lifetime", "purge:120s", "purge:2m"),
            ("lifetime", "purge:48h", "purge:2d"),
            ("placement", "local", "local"),
            ("placement", "collocate: merge 7 ", "collocate:merge 7"),
            ("placement", "scatter:1024K", "scatter:1M"),
            ("placement", "scatter:4 chunks", "scatter:4chunks"),
            ("durability", " optimistic ", "optimistic"),
            ("write-mode", "complete-local", "complete-local"),
            ("cache", "0", "none"),
            ("cache", "1024K", "1M"),
        ] {
            assert_eq!(canonical(name, value).unwrap(), (name, expected.to_string()), "{name}={value}");
        }
    }

    #[test]
    fn bad_values_are_refused_and_say_what_is_allowed() {
        for (name, value) in [
            ("redundancy", "ec:0+2"),
            ("redundancy", "ec:4+0"),
            ("redundancy", "ec:200+56"),
            ("redundancy", "ec:4"),
            ("redundancy", "ec:+4+2"),
            ("redundancy", "replica:1"),
            ("redundancy", "copy+ec:1+2"),
            ("redundancy", "raid6:8"),
            ("redundancy", "raid6:8+3"),
            ("redundancy", "raid6:1+2"),
            ("redundancy", "raid6:32+2"),
            ("redundancy", "copy+ec:4+0"),
            ("redundancy", "copy+ec:200+56"),
            ("redundancy", "copy+replica:2"),
            ("redundancy", "copy+4+2"),
            ("redundancy", "replica:17"),
            ("redundancy", "raid0"),
            ("redundancy", ""),
            ("chunking", "fixed:1"),
            ("chunking", "fixed:9M"),
            ("chunking", "cdc:1M..2M"),
            ("chunking", "cdc:1M"),
            ("chunking", "1M"),
            ("chunking", "cbch:20,14"),
            ("chunking", "cbch:20,14,20,1"),
            ("chunking", "cbch:20,14,0"),
            ("chunking", "cbch:0,14,20"),
            ("chunking", "cbch:65537,10,20"),
            ("chunking", "cbch:20,33,20"),
            ("chunking", "cbch:20,4,20"),
            ("chunking", "cbch:20,14,18446744073709551615"),
            ("chunking", "cbch:20,-1,20"),
            ("placement", "collocate:"),
            ("placement", "collocate:a\nb"),
            ("placement", "scatter:1K"),
            ("placement", "scatter:0chunks"),
            ("placement", "scatter:99999999999999999999chunks"),
            ("placement", "near"),
            ("cache", "some"),
            ("dedup", "maybe"),
            ("write-mode", "local"),
            ("lifetime", "replace:0"),
            ("lifetime", "purge"),
            ("lifetime", "purge:0s"),
            ("lifetime", "purge:5"),
            ("lifetime", "purge:99999999999999d"),
            ("degraded-writes", "1"),
        ] {
            let error = canonical(name, value).unwrap_err().to_string();
            assert!(error.contains("allowed"), "{name}={value}: {error}");
        }
        assert!(canonical("colour", "red").unwrap_err().to_string().contains("redundancy"));
    }

    #[test]
    fn auto_goes_by_length_and_place() {
        for (redundancy, placement, bytes, scheme) in [
            ("auto", "spread", AUTO_THRESHOLD_BYTES, "replica:3"),
            ("auto", "spread", AUTO_THRESHOLD_BYTES + 1, "ec:4+2"),
            ("auto", "local", AUTO_THRESHOLD_BYTES, "replica:3"),
            ("auto", "local", AUTO_THRESHOLD_BYTES + 1, "copy+ec:4+2"),
            ("auto:8+3", "collocate:g", u64::MAX, "copy+ec:8+3"),
            ("auto:8+3", "scatter:1M", u64::MAX, "ec:8+3"),
            ("auto:1+2", "local", u64::MAX, "ec:1+2"),
            ("ec:4+2", "local", u64::MAX, "ec:4+2"),
        ] {
            let policy = Policy::from_hints([("redundancy", redundancy), ("placement", placement)]).unwrap();
            assert_eq!(policy.scheme(bytes).to_string(), scheme, "{redundancy} {placement} {bytes}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics_and_canonical_is_a_fixed_point(index in 0..HINTS.len(), value in "\\PC{0,24}") {
            let name = HINTS[index].name;
            if let Ok(once) = canonical(name, &value) {
                assert_eq!(canonical(name, &once.1).unwrap(), once);
            }
        }
    }
}
