//! `tessera accel hash`: many small files as one batch, a large one segment by segment, or by the subtrees of BLAKE3; where
//! its digest is one chain, on the CPU in pieces, which is said.

use super::streams::{PIECE_BYTES, digest_rest, open_file, read_more};
use super::{open, say_faults};
use crate::args::HashArgs;
use crate::exit::{Failure, Outcome};
use crate::term::Out;
use serde_json::{Map, Value};
use std::fs::File;
use std::path::Path;
use tessera_accel::digest::{Digest, Function, Hasher, digest};
use tessera_accel::hash::{self, GROUP_BYTES, group_values};
use tessera_accel::runtime::operations::{DigestBatch, HashBatch};
use tessera_accel::{Accelerated, RunError, Spec};

/// A file of more bytes is hashed in pieces; files of as many together are one batch.
const BATCH_BYTES: usize = 64 << 20;
/// Files in a batch at most.
const BATCH_FILES: usize = 4096;

pub fn hash(args: &HashArgs) -> Outcome {
    let (out, device) = (Out::new(args.files.on.talk), open(&args.files.on)?);
    match args.segment {
        None => whole_files(args, &device, &out)?,
        Some(0) => return Err(Failure::usage("segments of 0 bytes: a segment has at least 1 byte; 4K is usual")),
        Some(segment) => args.files.files.iter().try_for_each(|path| {
            let (bytes, digest) = segmented(&device, args.function, segment, path)?;
            show(args, &out, path, bytes, digest)
        })?,
    }
    say_faults(&out, &device);
    Ok(())
}

fn show(args: &HashArgs, out: &Out, path: &Path, bytes: u64, digest: Digest) -> Outcome {
    if !out.json() {
        return out.line(format!("{digest}  {}", path.display()));
    }
    let mut page = Map::new();
    page.insert("file".into(), path.display().to_string().into());
    page.insert(args.function.name().into(), digest.to_string().into());
    page.insert("bytes".into(), bytes.into());
    args.segment.into_iter().for_each(|segment| drop(page.insert("segment_bytes".into(), segment.into())));
    out.document(&Value::Object(page))
}

/// Digests in the order of the files.
fn whole_files(args: &HashArgs, device: &Accelerated, out: &Out) -> Outcome {
    let (mut batch, mut held): (Vec<(&Path, Vec<u8>)>, usize) = Default::default();
    let flush = |batch: &mut Vec<(&Path, Vec<u8>)>| {
        let digests = digests(device, args.function, &batch.iter().map(|(_, b)| b.as_slice()).collect::<Vec<_>>())?;
        let files = batch.drain(..).zip(digests);
        files.into_iter().try_for_each(|((path, bytes), d)| show(args, out, path, bytes.len() as u64, d))
    };
    for path in &args.files.files {
        let (mut file, mut bytes) = (open_file(path)?, Vec::new());
        if read_more(&mut file, path, BATCH_BYTES + 1, &mut bytes)? > BATCH_BYTES {
            flush(&mut batch)?;
            held = 0;
            let (bytes, digest) = if args.function == Function::Blake3 {
                tree_by_parts(device, PIECE_BYTES, bytes, &mut file, path)?
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
            continue;
        }
        held += bytes.len();
        batch.push((path, bytes));
        if held >= BATCH_BYTES || batch.len() >= BATCH_FILES {
            flush(&mut batch)?;
            held = 0;
        }
    }
    flush(&mut batch)
}

/// Digests of buffers, by the device.
fn digests(device: &Accelerated, function: Function, buffers: &[&[u8]]) -> Result<Vec<Digest>, RunError> {
    let lens: Vec<usize> = buffers.iter().map(|b| b.len()).collect();
    if let Some(batch) = DigestBatch::new(function, &lens) {
        let fill = |input: &mut [u8]| buffers.iter().enumerate().for_each(|(i, b)| batch.pack(i, b, input));
        return Ok(batch.read(&device.run(&batch, fill)?.output));
    }
    match HashBatch::names(&lens).filter(|_| function == Function::Blake3) {
        Some(batch) => {
            let fill = |input: &mut [u8]| buffers.iter().enumerate().for_each(|(i, b)| batch.pack(i, b, input));
            let names = batch.read_names(&device.run(&batch, fill)?.output);
            Ok(names.into_iter().map(Digest::from).collect())
        }
        None => Ok(buffers.iter().map(|bytes| digest(function, bytes)).collect()),
    }
}

/// Length and BLAKE3 digest of a file of which the bytes `next`, more than `part_bytes`, have been read, part by part on the
/// device: parts are subtrees of BLAKE3's tree, a power of two of groups each.
fn tree_by_parts(
    device: &Accelerated,
    part_bytes: usize,
    mut next: Vec<u8>,
    file: &mut File,
    path: &Path,
) -> Outcome<(u64, Digest)> {
    let part_groups = (part_bytes / GROUP_BYTES) as u64;
    let (mut parts, mut total) = (Vec::new(), 0);
    loop {
        let wanted = next.len().next_multiple_of(part_bytes).max(part_bytes);
        let more = wanted - next.len();
        read_more(file, path, more, &mut next)?;
        for bytes in next.chunks(part_bytes) {
            let first_group = parts.len() as u64 * part_groups;
            let groups = match HashBatch::part(first_group, bytes.len()) {
                Some(part) => part.read_part(&device.run(&part, |input| part.pack(0, bytes, input))?.output),
                None => group_values(first_group, bytes),
            };
            parts.extend(hash::join(&groups));
        }
        total += next.len() as u64;
        if next.len() < wanted {
            break;
        }
        next.clear();
    }
    let name = hash::join_to_name(&parts).unwrap_or_default();
    Ok((total, Digest::from(name)))
}

/// Length, and the digest of the digests of the segments ([`tessera_accel::digest::segmented`]).
fn segmented(device: &Accelerated, function: Function, segment: usize, path: &Path) -> Outcome<(u64, Digest)> {
    let (mut file, mut all, mut bytes) = (open_file(path)?, Hasher::new(function), 0);
    let mut piece = Vec::new();
    loop {
        piece.clear();
        if segment > PIECE_BYTES {
            let Some((len, digest)) = long_segment(function, segment, &mut file, path)? else { break };
            bytes += len;
            all.update(digest.as_bytes());
            continue;
        }
        if read_more(&mut file, path, PIECE_BYTES / segment * segment, &mut piece)? == 0 {
            break;
        }
        bytes += piece.len() as u64;
        let segments: Vec<&[u8]> = piece.chunks(segment).collect();
        digests(device, function, &segments)?.iter().for_each(|digest| all.update(digest.as_bytes()));
    }
    Ok((bytes, all.finish()))
}

/// The next segment of a file, where it is longer than a piece; none at the end.
fn long_segment(function: Function, segment: usize, file: &mut File, path: &Path) -> Outcome<Option<(u64, Digest)>> {
    let (mut hasher, mut left, mut piece) = (Hasher::new(function), segment, Vec::new());
    while left > 0 && read_more(file, path, left.min(PIECE_BYTES), &mut piece)? > 0 {
        hasher.update(&piece);
        left -= piece.len();
        piece.clear();
    }
    Ok((left < segment).then(|| ((segment - left) as u64, hasher.finish())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_accel::Cpu;
    use tessera_accel::runtime::Options;

    /// P10: a file that is hashed part by part has the digest that it has in one piece; and it was the device that did it.
    #[test]
    fn a_file_in_parts_has_the_digest_of_the_whole() {
        let (runtime, target) = Spec::Emulated(1).runtime(Options::default()).unwrap();
        let device = Accelerated::new(runtime, target, Cpu::with(tessera_accel::Isa::best()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        for len in [32_769, 65_536, 65_537, 98_304, 98_305, 131_072, 200_001] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let mut file = open_file(&path).unwrap();
            let mut read = Vec::new();
            read_more(&mut file, &path, 32_769, &mut read).unwrap();
            let (total, found) = tree_by_parts(&device, 32_768, read, &mut file, &path).unwrap();
            assert_eq!((total, found), (len as u64, digest(Function::Blake3, &bytes)), "{len}");
        }
        let done = device.runtime().devices().iter().map(|d| d.done["tree"].0).sum::<u64>();
        assert!(done >= 7 * 2, "{done} parts");
    }
}
