//! The page of a file's fragments: the code that made them and the digest of each.

use super::PIECE_BYTES;
use crate::exit::{Exit, Outcome, bail, failure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tessera_accel::Coder;
use tessera_accel::erasure::{Code, Matrix};
use tessera_accel::xorcode::{Technique, XorCode};

/// Maximum bytes of data in a stripe: stripes are held in memory.
const MOST_STRIPE_BYTES: usize = 1 << 30;

/// Version 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    pub version: u32,
    /// Bytes of the file.
    pub bytes: u64,
    /// BLAKE3 of the file.
    pub blake3: String,
    /// `rs`, or the name of an XOR code's technique.
    pub code: String,
    /// Matrix of `rs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matrix: Option<String>,
    pub k: usize,
    pub m: usize,
    /// Of XOR codes: packets in a stripe, and bytes in a packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub w: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_bytes: Option<usize>,
    /// BLAKE3 of each fragment, in order.
    pub fragments: Vec<String>,
}

impl Page {
    /// The code, and the bytes of every fragment that are computed together: whole stripes of about [`PIECE_BYTES`] of
    /// data. A byte of parity depends only on the same stripe of each data fragment, so pieces are independent.
    ///
    /// # Errors
    /// There is no such code, or the data of a stripe exceeds 1 GiB.
    pub fn coder(&self) -> Outcome<(Coder, usize)> {
        let (k, m) = (self.k, self.m);
        let coder: Coder = if self.code == "rs" {
            let matrix: Matrix = self.matrix.as_deref().unwrap_or("cauchy1").parse()?;
            Code::new(k, m, matrix)?.into()
        } else {
            let technique: Technique = self.code.parse()?;
            let (w, packet) = (self.w.unwrap_or(0), self.packet_bytes.unwrap_or(0));
            XorCode::new(technique, k, m, w, packet)?.into()
        };
        let stripe = coder.align_bytes();
        match stripe.checked_mul(k) {
            Some(..=MOST_STRIPE_BYTES) => Ok((coder, (PIECE_BYTES / k / stripe).max(1) * stripe)),
            _ => bail!(Exit::Usage, "stripes of {k} times {stripe} bytes are too large; use smaller packets"),
        }
    }

    /// Bytes of each fragment; an error if no file can have the length of this one.
    pub fn fragment_len(&self, coder: &Coder) -> Outcome<usize> {
        let len = usize::try_from(self.bytes).ok().map(|bytes| coder.fragment_len(bytes));
        let countable = |len: &usize| len.checked_mul(self.k + self.m).is_some_and(|all| all <= isize::MAX as usize);
        len.filter(countable)
            .ok_or_else(|| failure!(Exit::Usage, "fragments of a file of {} bytes cannot be counted", self.bytes))
    }
}

pub fn page_path(file: &Path) -> PathBuf {
    with_suffix(file, ".fragments.json")
}

pub fn fragment_path(file: &Path, number: usize) -> PathBuf {
    with_suffix(file, &format!(".fragment.{number}"))
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
