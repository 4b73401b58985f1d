//! `tessera accel encode`, `decode` and `verify`: a file as k + m fragments next to it, and a page ([`super::page`])
//! that names them. All commands go through the fragments side by side, a piece of each at a time.

use super::digests::blake3_file;
use super::page::{Page, fragment_path, page_path};
use super::{check_output, fill, open_file, refuse_existing};
use crate::args::{EncodeArgs, FilesArgs};
use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use crate::files::place::PartialFile;
use crate::term::{Out, units};
use serde_json::json;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tessera_accel::{Accelerated, Coder, Device, EncodeJob, ReconstructJob};
use tessera_hashgpu::digest::{Function, Hasher};

pub fn encode(args: &EncodeArgs, device: &Accelerated, out: Out) -> Outcome {
    for file in &args.files.files {
        let page = encode_one(args, file, device).map_err(|e| e.of(file.display()))?;
        let (len, name) = (units::bytes(page.bytes), file.display().to_string());
        let line = format!("{name}: {len} in {}+{} fragments by {}", page.k, page.m, page.code);
        out.result(&json!({"file": name, "page": page}), line)?;
    }
    Ok(())
}

fn encode_one(args: &EncodeArgs, file: &Path, device: &Accelerated) -> Outcome<Page> {
    let xor = args.code != "rs";
    let mut page = Page {
        version: 1,
        bytes: 0,
        blake3: String::new(),
        code: args.code.clone(),
        matrix: (!xor).then(|| args.matrix.name().into()),
        k: args.k,
        m: args.m,
        w: xor.then_some(args.w),
        packet_bytes: xor.then_some(args.packet),
        fragments: Vec::new(),
    };
    let (coder, piece_len) = page.coder()?; // Before the file is read, so that an invalid code fails at once.
    let mut written = (0..page.k + page.m).map(|i| fragment_path(file, i)).chain([page_path(file)]);
    if !args.force && written.any(|path| path.exists()) {
        bail!(Exit::Conflict, "has fragments already; --force overwrites them");
    }
    let before = state(file)?;
    let (bytes, digest) = blake3_file(device, file)?;
    (page.bytes, page.blake3) = (bytes, digest.to_string());
    // A page makes the fragments valid, so there is none while they are written.
    match fs::remove_file(page_path(file)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        removed => removed.at(page_path(file))?,
    }
    let fragments = (0..page.k + page.m).map(|i| Fragment::create(fragment_path(file, i)));
    let mut fragments: Vec<Fragment> = fragments.collect::<Outcome<_>>()?;
    encode_pieces(&coder, page.fragment_len(&coder)?, piece_len, file, device, &mut fragments)?;
    page.fragments = fragments.into_iter().map(|fragment| fragment.digest.finish().to_string()).collect();
    if state(file)? != before {
        bail!(Exit::Failed, "changed while it was being encoded; encode it again");
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
    coder: &Coder,
    len: usize,
    piece_len: usize,
    path: &Path,
    device: &Accelerated,
    fragments: &mut [Fragment],
) -> Outcome {
    let file = open_file(path)?;
    for piece in pieces(len, piece_len) {
        let mut data = vec![vec![0; piece.len()]; coder.k()];
        for (i, room) in data.iter_mut().enumerate() {
            read_at(&file, path, (i * len + piece.start) as u64, room)?;
        }
        let mut parity = vec![vec![0; piece.len()]; coder.m()];
        let job = EncodeJob {
            data: data.iter().map(Vec::as_slice).collect(),
            frag_len: piece.len(),
            parity: parity.iter_mut().map(Vec::as_mut_slice).collect(),
        };
        device.encode(coder, &mut [job]).map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
        fragments.iter_mut().zip(data.iter().chain(&parity)).try_for_each(|(f, bytes)| f.write(bytes))?;
    }
    Ok(())
}

/// Fills `room` from the offset on, and leaves the rest unchanged beyond the file's end.
fn read_at(mut file: &File, path: &Path, offset: u64, room: &mut [u8]) -> Outcome {
    file.seek(SeekFrom::Start(offset)).and_then(|_| fill(&mut file, room)).at(path)?;
    Ok(())
}

/// State of a file's fragments.
struct Fragments {
    page: Page,
    coder: Coder,
    piece_len: usize,
    len: usize,
    sound: Vec<usize>,
    missing: Vec<usize>,
    damaged: Vec<usize>,
}

/// Reads the page and every fragment. Checks the page before use (P14).
fn examine(file: &Path, device: &Accelerated) -> Outcome<Fragments> {
    let path = page_path(file);
    let text = fs::read(&path).at(&path)?;
    let page: Page = serde_json::from_slice(&text)
        .map_err(|e| failure!(Exit::Corrupt, "{}: {e}; encode the file again", path.display()))?;
    if page.version != 1 || page.fragments.len() != page.k.saturating_add(page.m) {
        bail!(Exit::Corrupt, "{}: not a page of version 1", path.display());
    }
    // Invalid values are the page's fault, not the command's.
    let corrupt = |e: Failure| failure!(Exit::Corrupt, "{}: {}", path.display(), e.message);
    let (coder, piece_len) = page.coder().map_err(corrupt)?;
    let len = page.fragment_len(&coder).map_err(corrupt)?;
    let (mut sound, mut missing, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for (number, digest) in page.fragments.iter().enumerate() {
        let path = fragment_path(file, number);
        let list = match fs::metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => &mut missing,
            Err(e) => return Err(Failure::io(path, &e)),
            Ok(meta) if meta.len() != len as u64 => &mut damaged,
            Ok(_) if blake3_file(device, &path)?.1.to_string() != *digest => &mut damaged,
            Ok(_) => &mut sound,
        };
        list.push(number);
    }
    Ok(Fragments { page, coder, piece_len, len, sound, missing, damaged })
}

pub fn decode(output: Option<&Path>, force: bool, args: &FilesArgs, device: &Accelerated, out: Out) -> Outcome {
    check_output(output, args)?;
    for file in &args.files {
        let target = output.unwrap_or(file);
        refuse_existing(target, force)?;
        let found = decode_one(file, target, device).map_err(|e| e.of(file.display()))?;
        let (bytes, without) = (found.page.bytes, [found.missing, found.damaged].concat());
        let note = if without.is_empty() { String::new() } else { format!(", without fragments {without:?}") };
        let (file, target) = (file.display().to_string(), target.display().to_string());
        let line = format!("{target}: {}{note}", units::bytes(bytes));
        out.result(&json!({"file": file, "output": target, "bytes": bytes, "without": without}), line)?;
    }
    Ok(())
}

/// Writes the file to `target`, where it appears only with the right digest (P2).
fn decode_one(file: &Path, target: &Path, device: &Accelerated) -> Outcome<Fragments> {
    let mut found = examine(file, device)?;
    let (k, sound, damaged) = (found.page.k, found.sound.len(), found.damaged.len());
    if sound < k {
        bail!(Exit::Corrupt, "{sound} sound fragments, {damaged} damaged; {k} are needed");
    }
    found.sound.truncate(k);
    let mut partial = PartialFile::create(target)?;
    decode_pieces(&found, file, device, partial.file(), target)?;
    let (bytes, digest) = blake3_file(device, &partial.path())?;
    if (bytes, &digest.to_string()) != (found.page.bytes, &found.page.blake3) {
        bail!(Exit::Corrupt, "the fragments do not make the file that the page names; nothing was written");
    }
    partial.place()?;
    Ok(found)
}

fn decode_pieces(found: &Fragments, file: &Path, device: &Accelerated, output: &File, target: &Path) -> Outcome {
    let Fragments { page, coder, piece_len, len, sound, .. } = found;
    let lost: Vec<usize> = (0..page.k).filter(|i| !sound.contains(i)).collect();
    let paths: Vec<PathBuf> = sound.iter().map(|i| fragment_path(file, *i)).collect();
    let files = paths.iter().map(|path| open_file(path)).collect::<Outcome<Vec<File>>>()?;
    output.set_len(page.bytes).at(target)?;
    for piece in pieces(*len, *piece_len) {
        let mut held = vec![vec![0; piece.len()]; page.k];
        for ((path, file), room) in paths.iter().zip(&files).zip(&mut held) {
            read_at(file, path, piece.start as u64, room)?;
        }
        let present: Vec<(usize, &[u8])> = sound.iter().copied().zip(held.iter().map(Vec::as_slice)).collect();
        let mut rebuilt = vec![vec![0; piece.len()]; lost.len()];
        if !lost.is_empty() {
            let out = rebuilt.iter_mut().map(Vec::as_mut_slice).collect();
            let job = ReconstructJob { frag_len: piece.len(), present: present.clone(), wanted: lost.clone(), out };
            device.reconstruct(coder, &mut [job]).map_err(|e| Failure::new(Exit::Corrupt, e.to_string()))?;
        }
        let rebuilt = lost.iter().copied().zip(rebuilt.iter().map(Vec::as_slice));
        for (number, bytes) in present.into_iter().filter(|(i, _)| *i < page.k).chain(rebuilt) {
            let offset = (number * len + piece.start) as u64;
            let inside = page.bytes.saturating_sub(offset).min(bytes.len() as u64) as usize;
            output.write_all_at(&bytes[..inside], offset).at(target)?;
        }
    }
    Ok(())
}

pub fn verify(files: &[PathBuf], device: &Accelerated, out: Out) -> Outcome {
    let mut outcome = Ok(());
    for file in files {
        let found = examine(file, device).map_err(|e| e.of(file.display()))?;
        let Fragments { page, missing, damaged, sound, .. } = &found;
        let spare = sound.len() as i64 - page.k as i64;
        let bad = missing.len() + damaged.len();
        let state = match spare {
            _ if bad == 0 => "all fragments are sound".to_owned(),
            0.. => format!("missing {missing:?}, damaged {damaged:?}; can be decoded, {spare} to spare"),
            _ => format!("missing {missing:?}, damaged {damaged:?}; cannot be decoded"),
        };
        let name = file.display().to_string();
        let document = json!({"file": name, "missing": missing, "damaged": damaged, "spare": spare});
        out.result(&document, format!("{name}: {state}"))?;
        if bad > 0 {
            outcome = Err(Failure::silent(Exit::Corrupt));
        }
    }
    outcome
}
