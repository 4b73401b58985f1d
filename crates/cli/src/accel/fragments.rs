//! `tessera accel encode`, `decode` and `verify`: a file as k + m fragments beside it, and a page that says how they
//! were made and what each one's digest is.

use super::{open, read};
use crate::args::{EncodeArgs, FilesArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::term::{Out, units};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tessera_accel::erasure::{Code, Matrix, fragment_len};
use tessera_accel::runtime::operations::{Multiply, XorFragments};
use tessera_accel::xorcode::{Technique, XorCode};
use tessera_accel::{Accelerated, Device};

/// The page beside the fragments. Version 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    version: u32,
    /// Bytes of the file.
    bytes: u64,
    /// BLAKE3 of the file.
    blake3: String,
    /// `rs`, or the name of an XOR code's technique.
    code: String,
    /// Matrix of `rs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    matrix: Option<String>,
    k: usize,
    m: usize,
    /// Of XOR codes: packets in a stripe, and bytes in a packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    w: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_bytes: Option<usize>,
    /// BLAKE3 of each fragment, in order.
    fragments: Vec<String>,
}

/// A code of either family.
enum AnyCode {
    Rs(Code),
    Xor(Arc<XorCode>),
}

impl AnyCode {
    fn of(page: &Page) -> Outcome<AnyCode> {
        if page.code == "rs" {
            let name = page.matrix.as_deref().unwrap_or("cauchy1");
            let matrix: Matrix = name.parse().map_err(usage)?;
            return Ok(AnyCode::Rs(Code::new(page.k, page.m, matrix).map_err(usage)?));
        }
        let technique: Technique = page.code.parse().map_err(usage)?;
        let (w, packet) = (page.w.unwrap_or(0), page.packet_bytes.unwrap_or(0));
        Ok(AnyCode::Xor(Arc::new(XorCode::new(technique, page.k, page.m, w, packet).map_err(usage)?)))
    }

    /// Bytes of each fragment of a file of `bytes`, if it can be held in memory at all.
    fn fragment_len(&self, page: &Page) -> Outcome<usize> {
        let bytes = usize::try_from(page.bytes).ok();
        let len = bytes.and_then(|bytes| match self {
            AnyCode::Rs(code) => Some(fragment_len(bytes, code.k())),
            AnyCode::Xor(code) => code.fragment_len(bytes),
        });
        let whole = |len: &usize| len.checked_mul(page.k + page.m).is_some_and(|all| all <= isize::MAX as usize);
        len.filter(whole)
            .ok_or_else(|| Failure::usage(format!("a file of {} bytes cannot be held in memory", page.bytes)))
    }

    /// Fragments `wanted` from the k fragments `sources` of it, each of `len` bytes.
    fn compute(
        &self,
        on: &Accelerated,
        sources: &[(usize, &[u8])],
        wanted: &[usize],
        len: usize,
    ) -> Outcome<Vec<Vec<u8>>> {
        let numbers: Vec<usize> = sources.iter().map(|(i, _)| *i).collect();
        let undecidable = || Failure::new(Exit::Corrupt, format!("fragments {numbers:?} do not determine {wanted:?}"));
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

fn usage(error: impl ToString) -> Failure {
    Failure::usage(error.to_string())
}

fn page_path(file: &Path) -> PathBuf {
    with_suffix(file, ".fragments.json")
}

fn fragment_path(file: &Path, number: usize) -> PathBuf {
    with_suffix(file, &format!(".fragment.{number}"))
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn write(path: &Path, bytes: &[u8]) -> Outcome {
    fs::write(path, bytes).map_err(|e| Failure::io(path.display(), &e))
}

pub fn encode(args: &EncodeArgs) -> Outcome {
    let (out, device) = (Out::new(args.files.on.talk), open(&args.files.on)?);
    for file in &args.files.files {
        let page = encode_one(args, file, &device).map_err(|e| e.of(file.display()))?;
        if out.json() {
            out.document(&json!({"file": file.display().to_string(), "page": page}))?;
        } else {
            let len = units::bytes(page.bytes);
            out.line(format!("{}: {len} in {}+{} fragments by {}", file.display(), page.k, page.m, page.code))?;
        }
    }
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
    let code = AnyCode::of(&page)?; // Before the file is read: a code that cannot be costs nothing.
    if !args.force && page_path(file).exists() {
        return Err(Failure::new(Exit::Conflict, "has fragments already; --force overwrites them"));
    }
    let mut bytes = read(file)?;
    page.bytes = bytes.len() as u64;
    page.blake3 = device.hash(&[&bytes])[0].to_string();
    let len = code.fragment_len(&page)?;
    bytes.resize(args.k * len, 0);
    let data: Vec<(usize, &[u8])> = (0..args.k).map(|i| (i, &bytes[i * len..(i + 1) * len])).collect();
    let wanted: Vec<usize> = (args.k..args.k + args.m).collect();
    let parity = code.compute(device, &data, &wanted, len)?;
    let all: Vec<&[u8]> = data.iter().map(|(_, d)| *d).chain(parity.iter().map(|p| p.as_slice())).collect();
    page.fragments = device.hash(&all).iter().map(|h| h.to_string()).collect();
    for (number, fragment) in all.iter().enumerate() {
        write(&fragment_path(file, number), fragment)?;
    }
    // The page last: without it there are no fragments.
    let text = serde_json::to_string_pretty(&page).map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
    write(&page_path(file), (text + "\n").as_bytes())?;
    Ok(page)
}

/// What is known of a file's fragments: sound ones with their bytes.
struct Look {
    page: Page,
    code: AnyCode,
    len: usize,
    sound: Vec<(usize, Vec<u8>)>,
    missing: Vec<usize>,
    damaged: Vec<usize>,
}

/// Reads the page and every fragment. What the page says is checked before it is used (P14).
fn look(file: &Path, device: &Accelerated) -> Outcome<Look> {
    let path = page_path(file);
    let page: Page = serde_json::from_slice(&read(&path)?)
        .map_err(|e| Failure::new(Exit::Corrupt, format!("{}: {e}; encode the file again", path.display())))?;
    if page.version != 1 || page.fragments.len() != page.k.saturating_add(page.m) {
        return Err(Failure::new(Exit::Corrupt, format!("{}: not a page of version 1", path.display())));
    }
    let code = AnyCode::of(&page)?;
    let len = code.fragment_len(&page)?;
    let (mut sound, mut missing, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for (number, digest) in page.fragments.iter().enumerate() {
        match fs::read(fragment_path(file, number)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => missing.push(number),
            Err(e) => return Err(Failure::io(fragment_path(file, number).display(), &e)),
            Ok(bytes) if bytes.len() == len && device.hash(&[&bytes])[0].to_string() == *digest => {
                sound.push((number, bytes));
            }
            Ok(_) => damaged.push(number),
        }
    }
    Ok(Look { page, code, len, sound, missing, damaged })
}

pub fn decode(output: Option<&Path>, force: bool, args: &FilesArgs) -> Outcome {
    if output.is_some() && args.files.len() > 1 {
        return Err(Failure::usage("--output names one path, but there are several files; decode them one by one"));
    }
    let (out, device) = (Out::new(args.on.talk), open(&args.on)?);
    for file in &args.files {
        let target = output.unwrap_or(file);
        if !force && target.exists() {
            let why = format!("{} exists; --force overwrites it, --output names another", target.display());
            return Err(Failure::new(Exit::Conflict, why));
        }
        let (bytes, look) = decode_one(file, &device).map_err(|e| e.of(file.display()))?;
        write(target, &bytes)?;
        let without: Vec<usize> = [look.missing, look.damaged].concat();
        if out.json() {
            let (file, target) = (file.display().to_string(), target.display().to_string());
            out.document(&json!({"file": file, "output": target, "bytes": bytes.len(), "without": without}))?;
        } else {
            let note = if without.is_empty() { String::new() } else { format!(", without fragments {without:?}") };
            out.line(format!("{}: {}{note}", target.display(), units::bytes(bytes.len() as u64)))?;
        }
    }
    Ok(())
}

/// The file's bytes, compared with its digest (P2).
fn decode_one(file: &Path, device: &Accelerated) -> Outcome<(Vec<u8>, Look)> {
    let mut look = look(file, device)?;
    let k = look.page.k;
    if look.sound.len() < k {
        let (sound, damaged) = (look.sound.len(), look.damaged.len());
        let why = format!("{sound} sound fragments, {damaged} damaged; {k} are needed");
        return Err(Failure::new(Exit::Corrupt, why));
    }
    look.sound.truncate(k);
    let sources: Vec<(usize, &[u8])> = look.sound.iter().map(|(i, bytes)| (*i, bytes.as_slice())).collect();
    let lost: Vec<usize> = (0..k).filter(|i| sources.iter().all(|(s, _)| s != i)).collect();
    let rebuilt = match lost.is_empty() {
        true => Vec::new(),
        false => look.code.compute(device, &sources, &lost, look.len)?,
    };
    let mut bytes = Vec::with_capacity(k * look.len);
    for number in 0..k {
        let sound = sources.iter().find(|(i, _)| *i == number).map(|(_, bytes)| *bytes);
        let made = lost.iter().position(|i| *i == number).map(|at| rebuilt[at].as_slice());
        bytes.extend_from_slice(sound.or(made).unwrap_or_default());
    }
    bytes.truncate(look.page.bytes as usize);
    if device.hash(&[&bytes])[0].to_string() != look.page.blake3 {
        return Err(Failure::new(
            Exit::Corrupt,
            "the fragments do not make the file that the page names; nothing was written",
        ));
    }
    Ok((bytes, look))
}

pub fn verify(args: &FilesArgs) -> Outcome {
    let (out, device) = (Out::new(args.on.talk), open(&args.on)?);
    let mut worst = Ok(());
    for file in &args.files {
        let look = look(file, &device).map_err(|e| e.of(file.display()))?;
        let Look { page, missing, damaged, sound, .. } = &look;
        let spare = sound.len() as i64 - page.k as i64;
        if out.json() {
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
    worst
}
