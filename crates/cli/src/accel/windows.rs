//! `tessera accel windows`: the hash of every window of a file, piece by piece, including the windows that straddle two
//! pieces.

use super::{PIECE_BYTES, check_output, open_file, read_more, refuse_existing};
use crate::args::WindowsArgs;
use crate::exit::{At, Exit, Outcome, bail};
use crate::files::place::PartialFile;
use crate::term::Out;
use serde_json::json;
use std::io::{BufWriter, Write};
use std::path::Path;
use tessera_accel::{Accelerated, RunError};
use tessera_hashgpu::operations::HashWindows;
use tessera_hashgpu::windows::Windows;

/// Bytes read at a time: with steps of one byte the results are thirty times as large.
const READ_BYTES: usize = 1 << 20;

pub fn windows(args: &WindowsArgs, device: &Accelerated, out: Out) -> Outcome {
    let width = args.width.unwrap_or(args.function.digest_bytes());
    let windows = Windows::new(args.function, args.window, args.step, width)?;
    if args.window > PIECE_BYTES {
        bail!(Exit::Usage, "windows of {} bytes: {PIECE_BYTES} are the most", args.window);
    }
    check_output(args.output.as_deref(), &args.files)?;
    for path in &args.files.files {
        let Some(target) = &args.output else {
            each(device, windows, path, &mut |first, results| show(out, windows, path, first, results))?;
            continue;
        };
        let count = to_file(device, windows, path, target, args.force)?;
        let (path, target) = (path.display().to_string(), target.display().to_string());
        let line = format!("{path}: {count} windows, {width} bytes of each in {target}");
        out.result(&json!({"file": path, "output": target, "windows": count}), line)?;
    }
    Ok(())
}

/// Writes the results to a temporary file, which replaces `target` when complete: the input may be the file that is
/// replaced. Returns the number of results.
fn to_file(device: &Accelerated, windows: Windows, path: &Path, target: &Path, force: bool) -> Outcome<usize> {
    refuse_existing(target, force)?;
    let (mut partial, mut count) = (PartialFile::create(target)?, 0);
    let mut file = BufWriter::new(partial.file());
    each(device, windows, path, &mut |_, results| {
        count += results.len() / windows.width_bytes();
        file.write_all(results).at(target)
    })?;
    file.flush().at(target)?;
    drop(file);
    partial.place()?;
    Ok(count)
}

/// Prints a line for each window; the first one is at offset `first`.
fn show(out: Out, windows: Windows, path: &Path, first: u64, results: &[u8]) -> Outcome {
    for (number, result) in results.chunks_exact(windows.width_bytes()).enumerate() {
        let offset = first + (number * windows.step_bytes()) as u64;
        let digits: String = result.iter().map(|b| format!("{b:02x}")).collect();
        match out.json {
            true => out.document(&json!({"file": path.display().to_string(), "offset": offset, "hash": digits}))?,
            false => out.line(format!("{offset:>14} {digits}  {}", path.display()))?,
        }
    }
    Ok(())
}

/// Calls `take` with groups of results and the offset of the first window of each group.
fn each(device: &Accelerated, windows: Windows, path: &Path, take: &mut dyn FnMut(u64, &[u8]) -> Outcome) -> Outcome {
    let mut file = open_file(path)?;
    // `base`: offset in the file of the buffer's first byte. `skip`: bytes from the buffer's end to the next window.
    let (mut buffer, mut base, mut skip) = (Vec::new(), 0u64, 0usize);
    while read_more(&mut file, path, READ_BYTES, &mut buffer)? > 0 {
        let skipped = skip.min(buffer.len());
        buffer.drain(..skipped);
        (base, skip) = (base + skipped as u64, skip - skipped);
        let count = windows.count(buffer.len());
        if skip > 0 || count == 0 {
            continue;
        }
        let end = (count - 1) * windows.step_bytes() + windows.window_bytes();
        take(base, &hashes(device, windows, &buffer[..end])?)?;
        let next = count * windows.step_bytes();
        let done = next.min(buffer.len());
        buffer.drain(..done);
        (base, skip) = (base + done as u64, next - done);
    }
    Ok(())
}

fn hashes(device: &Accelerated, windows: Windows, bytes: &[u8]) -> Result<Vec<u8>, RunError> {
    match HashWindows::new(windows, bytes.len()) {
        Some(operation) => Ok(device.run(&operation, |input| input.copy_from_slice(bytes))?.output.to_vec()),
        None => Ok(windows.hash(bytes)),
    }
}
