//! The page of a file's fragments: the code that made them and the digest of each. Also the codes that a page can name.

use super::streams::PIECE_BYTES;
use crate::exit::{Exit, Failure, Outcome, bail, failure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tessera_accel::Accelerated;
use tessera_accel::erasure::{Code, FRAGMENT_ALIGN_BYTES, Matrix, fragment_len};
use tessera_accel::runtime::operations::{Multiply, XorFragments};
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

/// A code of either family.
pub enum AnyCode {
    Rs(Code),
    Xor(Arc<XorCode>),
}

impl AnyCode {
    pub fn of(page: &Page) -> Outcome<AnyCode> {
        if page.code == "rs" {
            let name = page.matrix.as_deref().unwrap_or("cauchy1");
            let matrix: Matrix = name.parse().map_err(usage)?;
            return Ok(AnyCode::Rs(Code::new(page.k, page.m, matrix).map_err(usage)?));
        }
        let technique: Technique = page.code.parse().map_err(usage)?;
        let (w, packet) = (page.w.unwrap_or(0), page.packet_bytes.unwrap_or(0));
        Ok(AnyCode::Xor(Arc::new(XorCode::new(technique, page.k, page.m, w, packet).map_err(usage)?)))
    }

    /// Bytes of each fragment of the page's file; an error if no file can have that length.
    pub fn fragment_len(&self, page: &Page) -> Outcome<usize> {
        let bytes = usize::try_from(page.bytes).ok();
        let len = bytes.and_then(|bytes| match self {
            AnyCode::Rs(code) => Some(fragment_len(bytes, code.k())),
            AnyCode::Xor(code) => code.fragment_len(bytes),
        });
        let countable = |len: &usize| len.checked_mul(page.k + page.m).is_some_and(|all| all <= isize::MAX as usize);
        len.filter(countable)
            .ok_or_else(|| failure!(Exit::Usage, "fragments of a file of {} bytes cannot be counted", page.bytes))
    }

    /// Bytes of every fragment that are computed together: whole stripes of about [`PIECE_BYTES`] of data. A byte of
    /// parity depends only on the same stripe of each data fragment, so pieces are independent.
    ///
    /// # Errors
    /// The data of a stripe exceeds 1 GiB.
    pub fn piece_bytes(&self, k: usize) -> Outcome<usize> {
        let stripe = match self {
            AnyCode::Rs(_) => FRAGMENT_ALIGN_BYTES,
            AnyCode::Xor(code) => code.stripe_bytes(),
        };
        match stripe.checked_mul(k) {
            Some(..=MOST_STRIPE_BYTES) => Ok((PIECE_BYTES / k / stripe).max(1) * stripe),
            _ => bail!(Exit::Usage, "stripes of {k} times {stripe} bytes are too large; use smaller packets"),
        }
    }

    /// Computes fragments `wanted` from the k fragments `sources`, each of `len` bytes.
    ///
    /// # Errors
    /// The code cannot compute them, or a job fails.
    pub fn compute(
        &self,
        on: &Accelerated,
        sources: &[(usize, &[u8])],
        wanted: &[usize],
        len: usize,
    ) -> Outcome<Vec<Vec<u8>>> {
        let numbers: Vec<usize> = sources.iter().map(|(i, _)| *i).collect();
        let undecidable = || failure!(Exit::Corrupt, "fragments {numbers:?} do not determine {wanted:?}");
        let parity = |code_k: usize| numbers.iter().copied().eq(0..code_k) && wanted.iter().all(|i| *i >= code_k);
        match self {
            AnyCode::Rs(code) => {
                let whole = parity(code.k()) && wanted.len() == code.m();
                let made = if whole {
                    Some(Multiply::encode(code, len, 1))
                } else {
                    Multiply::reconstruct(code, &numbers, wanted, len, 1)
                };
                let operation = made.ok_or_else(undecidable)?;
                let done = on.run(&operation, |input| {
                    sources.iter().enumerate().for_each(|(c, (_, bytes))| operation.pack(0, c, bytes, input));
                })?;
                Ok((0..wanted.len()).map(|row| done.output[operation.target_range(0, row)][..len].to_vec()).collect())
            }
            AnyCode::Xor(code) => {
                let whole = parity(code.k()) && wanted.len() == code.m();
                let made = if whole {
                    XorFragments::encode(code, len, 1)
                } else {
                    XorFragments::reconstruct(code, &numbers, wanted, len, 1)
                };
                let operation = made.ok_or_else(undecidable)?;
                let done = on.run(&operation, |input| {
                    sources
                        .iter()
                        .enumerate()
                        .for_each(|(s, (_, bytes))| input[operation.source_range(0, s)].copy_from_slice(bytes));
                })?;
                Ok((0..wanted.len()).map(|slot| done.output[operation.target_range(0, slot)].to_vec()).collect())
            }
        }
    }
}

pub fn usage(error: impl ToString) -> Failure {
    Failure::usage(error.to_string())
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
