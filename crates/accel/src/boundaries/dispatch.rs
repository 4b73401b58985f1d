//! Joins data with what came before it, and picks who scans.

use super::{Candidate, Params, WINDOW_BYTES, reference};
use crate::isa::{Isa, Level};

/// See [`super::candidates`].
pub fn candidates(isa: Isa, params: &Params, context: &[u8], data: &[u8], out: &mut Vec<Candidate>) {
    const OVERLAP: usize = WINDOW_BYTES - 1;
    // Windows that begin in the context lie in a small copy of the seam; all others lie in `data` alone.
    let context = &context[context.len().saturating_sub(OVERLAP)..];
    let head = &data[..data.len().min(OVERLAP)];
    let mut seam = [0u8; 2 * OVERLAP];
    seam[..context.len()].copy_from_slice(context);
    seam[context.len()..context.len() + head.len()].copy_from_slice(head);
    let first = out.len();
    reference::scan(params, &seam[..context.len() + head.len()], out);
    out[first..].iter_mut().for_each(|c| c.position -= context.len());
    scan(isa, params, data, out);
}

fn scan(isa: Isa, params: &Params, bytes: &[u8], out: &mut Vec<Candidate>) {
    match isa.level() {
        Level::Portable => reference::scan(params, bytes, out),
        #[cfg(target_arch = "x86_64")]
        _ => reference::scan(params, bytes, out),
    }
}
