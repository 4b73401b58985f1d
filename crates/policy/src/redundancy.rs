//! Redundancy: what a file asks for ([`Redundancy`]) and how a chunk is stored ([`Scheme`]).

use crate::Placement;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Why a redundancy value was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RedundancyError {
    /// The form is unknown.
    #[error("not a redundancy")]
    Form,
    /// k+m is outside the range of the code.
    #[error("ec:{k}+{m}: k and m must be at least 1 and k+m at most 255")]
    CodeSize {
        /// Data fragments.
        k: u64,
        /// Parity fragments.
        m: u64,
    },
    /// Not a RAID-6 code.
    #[error("raid6:{k}+{m}: 2 parities, and 2 to 31 data fragments; others are ec:{k}+{m}")]
    Raid6Size {
        /// Data fragments.
        k: u64,
        /// Parity fragments.
        m: u64,
    },
    /// A copy with coded fragments that would be copies too.
    #[error("copy+ec:1+{m}: with k = 1 every piece is the whole chunk; ask for replica:{}", m.saturating_add(1))]
    CopyOfOne {
        /// Parity fragments.
        m: u64,
    },
    /// Copies outside the accepted range.
    #[error("replica:{n}: 2 to 16 copies; one copy is called none")]
    Copies {
        /// Copies.
        n: u64,
    },
}

/// How a chunk becomes fragments. Text form as in `spec` of a class: `none`, `replica:3`, `ec:4+2`,
/// `raid6:8+2`, `copy+ec:4+2`. Its class says which fragments suffice to read, and how long each is
/// (`ClassLayout` in `tessera-stripe`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Whole copies, each a fragment; 1 is `none`.
    Copies {
        /// How many.
        n: u32,
    },
    /// k data and m parity fragments.
    Code {
        /// Data fragments.
        k: u32,
        /// Parity fragments.
        m: u32,
    },
    /// k data and 2 parity fragments by XOR alone.
    Raid6 {
        /// Data fragments, 2 to 31.
        k: u32,
    },
    /// One whole copy and k+m−1 coded fragments: for data that is read often, or computed on at the copy's host.
    CopyAndCode {
        /// Coded fragments that suffice without the copy.
        k: u32,
        /// Parity fragments.
        m: u32,
    },
}

impl Scheme {
    /// Fragments of a chunk, each on its own host.
    pub fn fragments(self) -> u32 {
        match self {
            Scheme::Copies { n } => n,
            Scheme::Code { k, m } | Scheme::CopyAndCode { k, m } => k + m,
            Scheme::Raid6 { k } => k + 2,
        }
    }

    /// Fragments of any kind that suffice to read (a copy may suffice alone).
    pub fn needed(self) -> u32 {
        match self {
            Scheme::Copies { .. } => 1,
            Scheme::Code { k, .. } | Scheme::CopyAndCode { k, .. } | Scheme::Raid6 { k } => k,
        }
    }

    /// The cost in space: this many bytes of data take this many bytes on disks.
    pub fn expansion(self) -> (u64, u64) {
        let (data, all) = (u64::from(self.needed()), u64::from(self.fragments()));
        match self {
            Scheme::CopyAndCode { .. } => (data, data + all - 1),
            _ => (data, all),
        }
    }

    /// Fragments of any kind that may be lost.
    pub fn losses(self) -> u32 {
        self.fragments() - self.needed()
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Copies { n: 1 } => f.write_str("none"),
            Scheme::Copies { n } => write!(f, "replica:{n}"),
            Scheme::Code { k, m } => write!(f, "ec:{k}+{m}"),
            Scheme::CopyAndCode { k, m } => write!(f, "copy+ec:{k}+{m}"),
            Scheme::Raid6 { k } => write!(f, "raid6:{k}+2"),
        }
    }
}

impl FromStr for Scheme {
    type Err = RedundancyError;
    fn from_str(text: &str) -> Result<Self, RedundancyError> {
        if text == "none" {
            return Ok(Scheme::Copies { n: 1 });
        }
        if let Some(n) = text.strip_prefix("replica:") {
            return match number(n)? {
                n @ 2..=16 => Ok(Scheme::Copies { n: n as u32 }),
                n => Err(RedundancyError::Copies { n }),
            };
        }
        if let Some(size) = text.strip_prefix("copy+ec:") {
            return match code_size(size)? {
                (1, m) => Err(RedundancyError::CopyOfOne { m: m.into() }),
                (k, m) => Ok(Scheme::CopyAndCode { k, m }),
            };
        }
        if let Some(size) = text.strip_prefix("raid6:") {
            return match code_size(size)? {
                (k @ 2..=31, 2) => Ok(Scheme::Raid6 { k }),
                (k, m) => Err(RedundancyError::Raid6Size { k: k.into(), m: m.into() }),
            };
        }
        let (k, m) = code_size(text.strip_prefix("ec:").ok_or(RedundancyError::Form)?)?;
        Ok(Scheme::Code { k, m })
    }
}

/// What a file asks for: a scheme, or one chosen by its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Redundancy {
    /// Always this scheme.
    Fixed(Scheme),
    /// m+1 copies while the file is small. What is written once it is larger is stored as `ec:k+m`, or as `copy+ec:k+m`
    /// if the placement names one host, so that all of it is there and not just a k-th.
    Auto {
        /// Data fragments when coded.
        k: u32,
        /// Losses to survive, for codes and copies.
        m: u32,
    },
}

impl Redundancy {
    /// The scheme for new chunks of a file of `file_bytes` with this placement.
    pub fn scheme(self, file_bytes: u64, placement: &Placement) -> Scheme {
        let on_one_host = matches!(placement, Placement::Local | Placement::Collocate { .. });
        match self {
            Redundancy::Fixed(scheme) => scheme,
            Redundancy::Auto { m, .. } if file_bytes <= crate::AUTO_THRESHOLD_BYTES => Scheme::Copies { n: m + 1 },
            Redundancy::Auto { k: k @ 2.., m } if on_one_host => Scheme::CopyAndCode { k, m },
            Redundancy::Auto { k, m } => Scheme::Code { k, m },
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Redundancy::Fixed(scheme) => scheme.fmt(f),
            Redundancy::Auto { k, m } => write!(f, "auto:{k}+{m}"),
        }
    }
}

impl FromStr for Redundancy {
    type Err = RedundancyError;
    fn from_str(text: &str) -> Result<Self, RedundancyError> {
        if text == "auto" {
            return Ok(Redundancy::Auto { k: 4, m: 2 });
        }
        match text.strip_prefix("auto:") {
            Some(size) => match code_size(size)? {
                (k, m @ 1..=15) => Ok(Redundancy::Auto { k, m }),
                (_, m) => Err(RedundancyError::Copies { n: u64::from(m) + 1 }),
            },
            None => text.parse().map(Redundancy::Fixed),
        }
    }
}

fn code_size(text: &str) -> Result<(u32, u32), RedundancyError> {
    let (k, m) = text.split_once('+').ok_or(RedundancyError::Form)?;
    let (k, m) = (number(k)?, number(m)?);
    match k >= 1 && m >= 1 && k.saturating_add(m) <= 255 {
        true => Ok((k as u32, m as u32)),
        false => Err(RedundancyError::CodeSize { k, m }),
    }
}

fn number(text: &str) -> Result<u64, RedundancyError> {
    crate::size::parse_digits(text).ok_or(RedundancyError::Form)
}
