//! Classic hints: the papers' own names and values, taken literally. WOSS's tags (dissertation, chapter 3, table 12)
//! and MosaStore's block size. Each stands for one hint of [`crate::HINTS`], and that hint is what is stored.

use crate::{Cache, Durability, HintError, Placement, Policy, Redundancy, Region, Scheme, format_size};

/// A hint under a paper's name.
pub struct Classic {
    /// Name; the extended attribute is `user.` and this.
    pub name: &'static str,
    /// The hint it stands for.
    pub hint: &'static str,
    /// Allowed values, for people.
    pub allowed: &'static str,
    /// Translates a value of this name into the hint's value.
    pub(crate) read: fn(&str) -> Result<String, String>,
    /// The value of a policy under this name.
    write: fn(&Policy) -> String,
}

/// All classic hints.
pub const CLASSIC: &[Classic] = &[
    Classic {
        name: "DP",
        hint: "placement",
        allowed: "local, collocation | GROUP, scatter | CHUNKS",
        read: placement,
        write: |p| match &p.placement {
            Placement::Spread => "spread".to_string(),
            Placement::Local => "local".to_string(),
            Placement::Collocate { group } => format!("collocation | {group}"),
            Placement::Scatter(Region::Chunks(count)) => format!("scatter | {count}"),
            Placement::Scatter(Region::Bytes(bytes)) => {
                format!("scatter | {}", bytes.div_ceil(p.chunking.mean_bytes()))
            }
        },
    },
    Classic {
        name: "Replication",
        hint: "redundancy",
        allowed: "a number of copies, 1 to 16",
        read: |v| match v.parse() {
            Ok(1) => Ok("none".to_string()),
            Ok(n @ 2..=16u32) => Ok(format!("replica:{n}")),
            _ => Err("not a number of copies".to_string()),
        },
        write: |p| match p.redundancy {
            Redundancy::Fixed(Scheme::Copies { n }) => n.to_string(),
            // As many copies as survive the same number of losses.
            Redundancy::Fixed(scheme) => (scheme.losses() + 1).to_string(),
            Redundancy::Auto { m, .. } => (m + 1).to_string(),
        },
    },
    Classic {
        name: "RepSmntc",
        hint: "durability",
        allowed: "Optimistic, Pessimistic",
        // The printed table spells both words differently.
        read: |v| match v.to_ascii_lowercase().as_str() {
            "optimistic" | "optimisitc" => Ok("optimistic".to_string()),
            "pessimistic" | "pessimestic" => Ok("pessimistic".to_string()),
            _ => Err("neither of the two".to_string()),
        },
        write: |p| match p.durability {
            Durability::Optimistic => "Optimistic".to_string(),
            Durability::Pessimistic => "Pessimistic".to_string(),
        },
    },
    Classic {
        name: "CacheSize",
        hint: "cache",
        allowed: "SIZE",
        read: |v| Ok(v.to_string()),
        write: |p| match p.cache {
            Cache::Auto => "auto".to_string(),
            Cache::Limit { bytes } => bytes.to_string(),
        },
    },
    Classic {
        name: "BlockSize",
        hint: "chunking",
        allowed: "SIZE",
        read: |v| Ok(format!("fixed:{v}")),
        write: |p| format_size(p.chunking.mean_bytes()),
    },
];

impl Classic {
    /// The value of a policy under this name.
    pub fn value(&self, policy: &Policy) -> String {
        (self.write)(policy)
    }

    pub(crate) fn error(&self, value: &str, why: String) -> HintError {
        HintError::Value { name: self.name, value: value.to_string(), why, allowed: self.allowed }
    }
}

pub(crate) fn find(name: &str) -> Option<&'static Classic> {
    CLASSIC.iter().find(|classic| classic.name == name)
}

/// `local`, `collocation | GROUP`, `scatter | CHUNKS`; the spaces around the bar are optional.
fn placement(value: &str) -> Result<String, String> {
    match value.split_once('|').map(|(word, rest)| (word.trim(), rest.trim())) {
        None if value == "local" => Ok("local".to_string()),
        Some(("collocation", group)) => Ok(format!("collocate:{group}")),
        Some(("scatter", count)) => Ok(format!("scatter:{count}chunks")),
        _ => Err("not a data placement".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{canonical, hint_of_attribute};

    /// Table 12, as printed.
    #[test]
    fn the_tables_own_words_are_understood_and_given_back() {
        for (name, value, hint, own, back) in [
            ("DP", "local", "placement", "local", "local"),
            ("DP", "collocation |merge_1", "placement", "collocate:merge_1", "collocation | merge_1"),
            ("DP", "scatter | 4", "placement", "scatter:4chunks", "scatter | 4"),
            ("Replication", "8", "redundancy", "replica:8", "8"),
            ("Replication", "1", "redundancy", "none", "1"),
            ("RepSmntc", "Optimisitc", "durability", "optimistic", "Optimistic"),
            ("RepSmntc", "Pessimestic", "durability", "pessimistic", "Pessimistic"),
            ("CacheSize", "16M", "cache", "16M", "16777216"),
            ("BlockSize", "1M", "chunking", "fixed:1M", "1M"),
        ] {
            assert_eq!(canonical(name, value).unwrap(), (hint, own.to_string()), "{name}={value}");
            let policy = Policy::from_hints([(name, value)]).unwrap();
            assert_eq!(find(name).unwrap().value(&policy), back, "{name}={value}");
            assert_eq!(hint_of_attribute(&format!("user.{name}")), Some(hint));
        }
        assert_eq!(hint_of_attribute("user.tessera.placement"), Some("placement"));
        assert_eq!(hint_of_attribute("user.tessera.DP"), Some("placement"));
        assert_eq!(hint_of_attribute("user.placement"), None);
        assert_eq!(hint_of_attribute("DP"), None);
    }

    #[test]
    fn other_words_are_refused_by_that_name() {
        for (name, value) in [
            ("DP", "near"),
            ("DP", "collocation"),
            ("DP", "scatter | many"),
            ("DP", "scatter | 0"),
            ("DP", "collocation | "),
            ("Replication", "0"),
            ("Replication", "17"),
            ("RepSmntc", "whatever"),
            ("CacheSize", "-1"),
            ("BlockSize", "1"),
        ] {
            assert!(canonical(name, value).unwrap_err().to_string().contains("allowed"), "{name}={value}");
        }
    }
}
