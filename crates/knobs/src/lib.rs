//! Configuration keys, each declared once: [`knobs!`] makes the struct, its defaults and the table [`Knob`] from one list.
//!
//! The command line sets keys by name and prints docs/config.md from the same table. A crate that has knobs declares them in
//! its `config.rs`; a key's unit is the end of its name. This crate parses nothing and knows no key.

use std::ops::RangeInclusive;

/// One configuration key of a `T`.
#[derive(Debug, Clone)]
pub struct Knob<T> {
    /// Its name, in `[tuning]` and for `--set`.
    pub key: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// Values that make sense.
    pub range: RangeInclusive<u64>,
    /// Reads the value.
    pub get: fn(&T) -> u64,
    /// Sets a value; `false` and no change if the field's type cannot hold it.
    pub set: fn(&mut T, u64) -> bool,
}

impl<T> Knob<T> {
    /// Unit of the value, empty for counts.
    pub fn unit(&self) -> &'static str {
        let units = [("_bytes_per_s", "bytes/s"), ("_bytes", "bytes"), ("_ms", "ms"), ("_s", "s"), ("_percent", "%")];
        units.iter().find(|(end, _)| self.key.ends_with(end)).map_or("", |(_, unit)| unit)
    }
}

/// Declares a struct of configuration keys.
///
/// Each field has its help as a comment, a default, and behind `in` its range (from 1 on, if none is given). Fields behind
/// `with` are set by code alone and have no key.
///
/// ```
/// tessera_knobs::knobs! {
///     /// How a cache behaves.
///     #[derive(Debug, Clone, PartialEq)]
///     pub struct CacheOptions {
///         /// Bytes kept in memory.
///         cache_bytes: usize = 64 << 20;
///         /// An entry is dropped
///         /// after this long; 0: never.
///         keep_ms: u64 = 0, in 0..=u64::MAX;
///     }
///     with {
///         /// Name in logs.
///         name: String = "cache".into();
///     }
/// }
/// let mut options = CacheOptions::default();
/// let keep = &CacheOptions::KNOBS[1];
/// assert_eq!((keep.key, keep.unit(), keep.help), ("keep_ms", "ms", " An entry is dropped after this long; 0: never."));
/// assert!((keep.set)(&mut options, 5));
/// assert_eq!((options.keep_ms, (keep.get)(&options), options.name.as_str()), (5, 5, "cache"));
/// ```
#[macro_export]
macro_rules! knobs {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[doc = $help:literal])+ $field:ident: $type:ty = $default:expr $(, in $range:expr)?;)*
        }
        $(with { $($(#[doc = $other_help:literal])+ $other:ident: $other_type:ty = $other_default:expr;)* })?
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[doc = $help])+ pub $field: $type,)*
            $($($(#[doc = $other_help])+ pub $other: $other_type,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* $($($other: $other_default,)*)? }
            }
        }

        impl $name {
            /// Every key, in the order of the fields.
            pub const KNOBS: &'static [$crate::Knob<$name>] = &[$($crate::Knob {
                key: stringify!($field),
                help: concat!($($help),+),
                range: $crate::range!($($range)?),
                get: |options| options.$field as u64,
                set: |options, number| match number.try_into() {
                    Ok(number) => { options.$field = number; true }
                    Err(_) => false,
                },
            },)*];
        }
    };
}

/// The range of a key in [`knobs!`].
#[doc(hidden)]
#[macro_export]
macro_rules! range {
    () => {
        1..=u64::MAX
    };
    ($range:expr) => {
        $range
    };
}
