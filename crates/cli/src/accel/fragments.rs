//! `tessera accel encode`, `decode` and `verify`: a file as k + m fragments next to it, and a page ([`super::page`])
//! that names them. All commands go through the fragments side by side, a piece of each at a time.

use super::digests::blake3_file;
use super::page::{AnyCode, Page, fragment_path, page_path};
use super::streams::open_file;
use super::{open, say_faults};
use crate::args::{EncodeArgs, FilesArgs};
use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use crate::files::local::PartialFile;
use crate::term::units;
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tessera_accel::Accelerated;
use tessera_hashgpu::digest::{Function, Hasher};

pub fn encode(args: &EncodeArgs) -> Outcome {
    let (out, device) = (args.files.on.output, open(&args.files.on)?);
    for file in &args.files.files {
        let page = encode_one(args, file, &device).map_err(|e| e.of(file.display()))?;
        if out.json {
            out.document(&json!({"file": file.display().to_string(), "page": page}))?;
        } else {
            let len = units::bytes(page.bytes);
            out.line(format!("{}: {len} in {}+{} fragments by {}", file.display(), page.k, page.m, page.code))?;
        }
    }
    say_faults(out, &device);
    Ok(())
}

fn encode_one(args: &EncodeArgs, file: &Path, device: &Accelerated) -> Outcome<Page> {
    let xor = args.code.technique();
    let mut page = Page {
        version: 1,
        bytes: 0,
        blake3: String::new(),
        code: xor.map_or("rs".into(), |t| t.name().into()),
        matrix: xor.is_none().then(|| args.matrix.name().into()),
        k: args.k,
        m: args.m,
        w: xor.map(|_| args.w),
        packet_bytes: xor.map(|_| args.packet),
        fragments: Vec::new(),
    };
    let code = AnyCode::of(&page)?; // Before the file is read, so that an invalid code fails at once.
    let piece = code.piece_bytes(page.k)?;
    let mut written = (0..page.k + page.m).map(|i| fragment_path(file, i)).chain([page_path(file)]);
    if !args.force && written.any(|path| path.exists()) {
        return Err(Failure::new(Exit::Conflict, "has fragments already; --force overwrites them"));
    }
    let before = state(file)?;
    let (bytes, digest) = blake3_file(device, file)?;
    (page.bytes, page.blake3) = (bytes, digest.to_string());
    let len = code.fragment_len(&page)?;
    // A page makes the fragments valid, so there is none while they are written.
    match fs::remove_file(page_path(file)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Failure::io(page_path(file), &e)),
        _ => {}
    }
    let mut writers: Vec<Fragment> =
        (0..page.k + page.m).map(|i| Fragment::create(fragment_path(file, i))).collect::<Outcome<_>>()?;
    encode_pieces(&code, &page, file, pieces(len, piece), device, &mut writers)?;
    page.fragments = writers.into_iter().map(|w| w.digest.finish().to_string()).collect();
    if state(file)? != before {
        return Err(Failure::new(Exit::Failed, "changed while it was being encoded; encode it again"));
    }
    let text = serde_json::to_string_pretty(&page).map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
    fs::write(page_path(file), text + "\n").at(page_path(file))?;
    Ok(page)
}

/// Length and time that show whether a file has changed.
fn state(file: &Path) -> Outcome<(u64, Option<std::time::SystemTime>)> {
    let meta = fs::metadata(file).at(file)?;
    Ok((meta.len(), meta.modified().ok()))
}

/// The pieces of a fragment.
fn pieces(len: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(piece).map(move |at| at..len.min(at.saturating_add(piece)))
}

/// A fragment being written.
struct Fragment {
    path: PathBuf,
    file: File,
    digest: Hasher,
}

impl Fragment {
    fn create(path: PathBuf) -> Outcome<Fragment> {
        let file = File::create(&path).at(&path)?;
        Ok(Fragment { path, file, digest: Hasher::new(Function::Blake3) })
    }

    fn write(&mut self, bytes: &[u8]) -> Outcome {
        self.digest.update(bytes);
        self.file.write_all(bytes).at(&self.path)
    }
}

/// Data fragment i is the i-th of k parts of the file; the last ones may reach beyond its end and contain zeros there.
fn encode_pieces(
    code: &AnyCode,
    page: &Page,
    path: &Path,
    pieces: impl Iterator<Item = Range<usize>>,
    device: &Accelerated,
    writers: &mut [Fragment],
) -> Outcome {
    let len = code.fragment_len(page)?;
    let (file, k) = (open_file(path)?, page.k);
    let mut data: Vec<Vec<u8>> = vec![Vec::new(); k];
    let wanted: Vec<usize> = (k..k + page.m).collect();
    for piece in pieces {
        for (i, room) in data.iter_mut().enumerate() {
            room.clear();
            room.resize(piece.len(), 0);
            read_at(&file, path, (i * len + piece.start) as u64, room)?;
        }
        let sources: Vec<(usize, &[u8])> = data.iter().map(|d| d.as_slice()).enumerate().collect();
        let parity = code.compute(device, &sources, &wanted, piece.len())?;
        let all = data.iter().chain(&parity);
        writers.iter_mut().zip(all).try_for_each(|(writer, bytes)| writer.write(bytes))?;
    }
    Ok(())
}

/// Fills `room` from the offset on, and leaves the rest unchanged beyond the file's end.
fn read_at(file: &File, path: &Path, offset: u64, room: &mut [u8]) -> Outcome<usize> {
    let mut filled = 0;
    while filled < room.len() {
        match file.read_at(&mut room[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Failure::io(path, &e)),
        }
    }
    Ok(filled)
}

/// State of a file's fragments.
struct Look {
    page: Page,
    code: AnyCode,
    len: usize,
    sound: Vec<usize>,
    missing: Vec<usize>,
    damaged: Vec<usize>,
}

/// Reads the page and every fragment. Checks the page before use (P14).
fn look(file: &Path, device: &Accelerated) -> Outcome<Look> {
    let path = page_path(file);
    let text = fs::read(&path).at(&path)?;
    let page: Page = serde_json::from_slice(&text)
        .map_err(|e| failure!(Exit::Corrupt, "{}: {e}; encode the file again", path.display()))?;
    if page.version != 1 || page.fragments.len() != page.k.saturating_add(page.m) {
        bail!(Exit::Corrupt, "{}: not a page of version 1", path.display());
    }
    // Invalid values are the page's fault, not the command's.
    let corrupt = |e: Failure| failure!(Exit::Corrupt, "{}: {}", path.display(), e.message);
    let code = AnyCode::of(&page).map_err(corrupt)?;
    let len = code.fragment_len(&page).map_err(corrupt)?;
    code.piece_bytes(page.k).map_err(corrupt)?;
    let (mut sound, mut missing, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for (number, digest) in page.fragments.iter().enumerate() {
        let path = fragment_path(file, number);
        match fs::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => missing.push(number),
            Err(e) => return Err(Failure::io(&path, &e)),
            Ok(meta) if meta.len() != len as u64 => damaged.push(number),
            Ok(_) => match blake3_file(device, &path)?.1.to_string() == *digest {
                true => sound.push(number),
                false => damaged.push(number),
            },
        }
    }
    Ok(Look { page, code, len, sound, missing, damaged })
}

pub fn decode(output: Option<&Path>, force: bool, args: &FilesArgs) -> Outcome {
    if output.is_some() && args.files.len() > 1 {
        bail!(Exit::Usage, "--output names one path, but there are several files; decode them one by one");
    }
    let (out, device) = (args.on.output, open(&args.on)?);
    for file in &args.files {
        let target = output.unwrap_or(file);
        if !force && target.exists() {
            let why = format!("{} exists; --force overwrites it, --output names another", target.display());
            return Err(Failure::new(Exit::Conflict, why));
        }
        let look = decode_one(file, target, &device).map_err(|e| e.of(file.display()))?;
        let (bytes, without) = (look.page.bytes, [look.missing, look.damaged].concat());
        if out.json {
            let (file, target) = (file.display().to_string(), target.display().to_string());
            out.document(&json!({"file": file, "output": target, "bytes": bytes, "without": without}))?;
        } else {
            let note = if without.is_empty() { String::new() } else { format!(", without fragments {without:?}") };
            out.line(format!("{}: {}{note}", target.display(), units::bytes(bytes)))?;
        }
    }
    say_faults(out, &device);
    Ok(())
}

/// Writes the file to `target`, where it appears only with the right digest (P2).
fn decode_one(file: &Path, target: &Path, device: &Accelerated) -> Outcome<Look> {
    let mut look = look(file, device)?;
    let k = look.page.k;
    if look.sound.len() < k {
        let (sound, damaged) = (look.sound.len(), look.damaged.len());
        let why = format!("{sound} sound fragments, {damaged} damaged; {k} are needed");
        return Err(Failure::new(Exit::Corrupt, why));
    }
    look.sound.truncate(k);
    let mut partial = PartialFile::create(target)?;
    decode_pieces(&look, file, device, partial.file(), target)?;
    let (bytes, digest) = blake3_file(device, partial.path())?;
    if (bytes, digest.to_string()) != (look.page.bytes, look.page.blake3.clone()) {
        let why = "the fragments do not make the file that the page names; nothing was written";
        return Err(Failure::new(Exit::Corrupt, why));
    }
    partial.place()?;
    Ok(look)
}

fn decode_pieces(look: &Look, file: &Path, device: &Accelerated, output: &File, target: &Path) -> Outcome {
    let Look { page, code, len, sound, .. } = look;
    let failed = |e: std::io::Error| Failure::io(target, &e);
    let lost: Vec<usize> = (0..page.k).filter(|i| !sound.contains(i)).collect();
    let sources = sound.iter().map(|i| (*i, fragment_path(file, *i)));
    let sources: Vec<(usize, PathBuf)> = sources.collect();
    let files = sources.iter().map(|(_, path)| open_file(path)).collect::<Outcome<Vec<File>>>()?;
    output.set_len(page.bytes).map_err(failed)?;
    for piece in pieces(*len, code.piece_bytes(page.k)?) {
        let mut held: Vec<(usize, Vec<u8>)> = Vec::with_capacity(page.k);
        for ((number, path), file) in sources.iter().zip(&files) {
            let mut room = vec![0; piece.len()];
            read_at(file, path, piece.start as u64, &mut room)?;
            held.push((*number, room));
        }
        let slices: Vec<(usize, &[u8])> = held.iter().map(|(i, bytes)| (*i, bytes.as_slice())).collect();
        let rebuilt = match lost.is_empty() {
            true => Vec::new(),
            false => code.compute(device, &slices, &lost, piece.len())?,
        };
        let data = slices.iter().copied().filter(|(i, _)| *i < page.k);
        for (number, bytes) in data.chain(lost.iter().copied().zip(rebuilt.iter().map(|r| r.as_slice()))) {
            let offset = (number * len + piece.start) as u64;
            let inside = page.bytes.saturating_sub(offset).min(bytes.len() as u64) as usize;
            output.write_all_at(&bytes[..inside], offset).map_err(failed)?;
        }
    }
    Ok(())
}

pub fn verify(args: &FilesArgs) -> Outcome {
    let (out, device) = (args.on.output, open(&args.on)?);
    let mut worst = Ok(());
    for file in &args.files {
        let look = look(file, &device).map_err(|e| e.of(file.display()))?;
        let Look { page, missing, damaged, sound, .. } = &look;
        let spare = sound.len() as i64 - page.k as i64;
        if out.json {
            let file = file.display().to_string();
            out.document(&json!({"file": file, "missing": missing, "damaged": damaged, "spare": spare}))?;
        } else {
            let state = match (missing.len() + damaged.len(), spare) {
                (0, _) => "all fragments are sound".to_owned(),
                (_, 0..) => format!("missing {missing:?}, damaged {damaged:?}; can be decoded, {spare} to spare"),
                _ => format!("missing {missing:?}, damaged {damaged:?}; cannot be decoded"),
            };
            out.line(format!("{}: {state}", file.display()))?;
        }
        if missing.len() + damaged.len() > 0 {
            worst = Err(Failure { exit: Exit::Corrupt, message: String::new() });
        }
    }
    say_faults(out, &device);
    worst
}
