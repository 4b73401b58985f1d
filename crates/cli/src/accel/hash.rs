//! `tessera accel hash`: hashes many small files together. It hashes a large one by segments, or by the subtrees of
//! BLAKE3, with several jobs at once ([`super::digests`]). If the digest is one chain, the CPU hashes the file in
//! pieces, and the output says so.

use super::digests::{PART_BYTES, blake3_by_parts, digest_rest, digests, segmented};
use super::{open_file, read_more};
use crate::args::HashArgs;
use crate::exit::{Exit, Outcome, bail};
use crate::term::Out;
use serde_json::json;
use std::path::Path;
use tessera_accel::{Accelerated, Spec};
use tessera_hashgpu::digest::{Digest, Function};

/// Maximum bytes of files in one batch. A larger file whose digest is a chain is hashed in pieces.
const BATCH_BYTES: usize = 64 << 20;
/// Maximum files in a batch.
const BATCH_FILES: usize = 4096;

pub fn hash(args: &HashArgs, device: &Accelerated, out: Out) -> Outcome {
    match args.segment {
        None => whole_files(args, device, out),
        Some(0) => bail!(Exit::Usage, "segments of 0 bytes: a segment has at least 1 byte; 4K is usual"),
        Some(segment) => args.files.files.iter().try_for_each(|path| {
            let (bytes, digest) = segmented(device, args.function, segment, path)?;
            show(args, out, path, bytes, digest)
        }),
    }
}

fn show(args: &HashArgs, out: Out, path: &Path, bytes: u64, digest: Digest) -> Outcome {
    let name = path.display().to_string();
    let mut document = json!({"file": name, args.function.name(): digest.to_string(), "bytes": bytes});
    if let Some(segment) = args.segment {
        document["segment_bytes"] = segment.into();
    }
    out.result(&document, format!("{digest}  {name}"))
}

/// Digests in the order of the files.
fn whole_files(args: &HashArgs, device: &Accelerated, out: Out) -> Outcome {
    let (mut batch, mut held): (Vec<(&Path, Vec<u8>)>, usize) = Default::default();
    let flush = |batch: &mut Vec<(&Path, Vec<u8>)>, held: &mut usize| {
        *held = 0;
        let digests = digests(device, args.function, &batch.iter().map(|(_, b)| b.as_slice()).collect::<Vec<_>>())?;
        let files = batch.drain(..).zip(digests);
        files.into_iter().try_for_each(|((path, bytes), d)| show(args, out, path, bytes.len() as u64, d))
    };
    let most = if args.function == Function::Blake3 { PART_BYTES } else { BATCH_BYTES };
    for path in &args.files.files {
        let (mut file, mut bytes) = (open_file(path)?, Vec::new());
        if read_more(&mut file, path, most + 1, &mut bytes)? <= most {
            held += bytes.len();
            batch.push((path, bytes));
            if held >= BATCH_BYTES || batch.len() >= BATCH_FILES {
                flush(&mut batch, &mut held)?;
            }
            continue;
        }
        flush(&mut batch, &mut held)?;
        let (bytes, digest) = if args.function == Function::Blake3 {
            blake3_by_parts(device, PART_BYTES, &bytes, &mut file, path)?
        } else {
            if args.files.on.device != Spec::Cpu {
                let (name, of) = (args.function, path.display());
                out.note(format!(
                    "{of}: {name} of a long file is one chain, which the CPU does; --segment 4K goes to the device"
                ));
            }
            digest_rest(args.function, &bytes, &mut file, path)?
        };
        show(args, out, path, bytes, digest)?;
    }
    flush(&mut batch, &mut held)
}
