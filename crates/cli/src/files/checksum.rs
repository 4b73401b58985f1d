//! What of a local tree the store has already, by content: every file is read and hashed here, and the manager compares the digests of
//! thousands at once.

use super::holes::SparseSource;
use super::local::{Kind, LocalEntry};
use super::pool;
use super::put::{Condition, Job};
use super::small::state;
use super::unchanged::{Known, has_attributes};
use crate::exit::{At, Failure, Outcome};
use crate::remote::Store;
use crate::term::{Out, Progress};
use parking_lot::Mutex;
use tessera_client::path::StorePath;
use tessera_client::{Cancel, Progress as Step, Source};
use tessera_wire::InodeKind;

/// Files by what is to be done.
#[derive(Default)]
pub struct Compared {
    /// To be stored.
    pub files: Vec<Job>,
    /// Whose mode, owner and time are to be set, with their inodes.
    pub attributes: Vec<(u64, Job)>,
}

/// A file of a length that the store has under its name.
struct Candidate {
    ino: u64,
    has_attributes: bool,
    job: Job,
}

/// Compares files with what the store has under their names.
///
/// # Errors
/// The manager does not answer.
pub fn compare(
    store: &Store,
    known: &Known,
    files: Vec<Job>,
    condition: &Condition,
    jobs: usize,
    out: Out,
) -> Outcome<Compared> {
    let (mut compared, mut candidates) = (Compared::default(), Vec::new());
    for job in files {
        match known.attr(&job.to) {
            Some(attr) if attr.kind() == InodeKind::File && attr.size_bytes == job.found.len_bytes() => {
                candidates.push(Candidate { ino: attr.ino, has_attributes: has_attributes(&job.found, attr), job });
            }
            _ => compared.files.push(job),
        }
    }
    let total = candidates.iter().map(|file| file.job.found.len_bytes()).sum();
    let progress = Progress::bytes(out, "compare", Some(total));
    let digests: Vec<Mutex<Option<[u8; 32]>>> = candidates.iter().map(|_| Mutex::default()).collect();
    let hash = |i: usize| {
        let Job { found, to } = &candidates[i].job;
        match digest(store, found, to, condition) {
            Ok(digest) => *digests[i].lock() = digest,
            // The other files would fail, too.
            Err(failure) if pool::is_general(&failure) => return Err(failure),
            // What cannot be read here is stored, which says why.
            Err(_) => {}
        }
        progress.steps()(Step { done: found.len_bytes(), total: None });
        Ok(())
    };
    let len_bytes = |i: &usize| candidates[*i].job.found.len_bytes();
    pool::run((0..candidates.len()).collect(), len_bytes, jobs, hash, |_| ()).first_failure()?;
    let asked: Vec<(u64, [u8; 32])> =
        candidates.iter().zip(&digests).filter_map(|(file, digest)| Some((file.ino, (*digest.lock())?))).collect();
    let mut equal = store.compare(&asked).map_err(Failure::from)?.into_iter();
    progress.finish();
    for (Candidate { ino, has_attributes, job }, digest) in candidates.into_iter().zip(digests) {
        match digest.into_inner().is_some() && equal.next().unwrap_or(false) {
            false => compared.files.push(job),
            true if !has_attributes => compared.attributes.push((ino, job)),
            true => {}
        }
    }
    Ok(compared)
}

/// The digest of a local file. `None`: it changed while it was read, or has too many pieces.
fn digest(store: &Store, found: &LocalEntry, to: &StorePath, condition: &Condition) -> Outcome<Option<[u8; 32]>> {
    let Kind::File(len_bytes) = found.kind else { return Ok(None) };
    let mut file = found.open()?;
    let before = file.metadata().at(&found.path)?;
    let watch = file.try_clone().at(&found.path)?;
    let source = match found.sparse {
        true => Source::Sparse { file: &mut SparseSource(&mut file), len_bytes },
        false => Source::Reader { reader: &mut file, len_bytes: Some(len_bytes) },
    };
    let digest = store.digest(to, &condition.hints, source, &Cancel::default())?;
    let after = watch.metadata().at(&found.path)?;
    Ok((state(&before) == state(&after) && after.len() == len_bytes).then_some(digest).flatten())
}
