//! Tells the kernel to look a name up before it uses it again, and to keep what it has of it until then.
//!
//! `fuser` knows only the notice that drops a name. The kernel then unhashes a directory even while it is some program's working
//! directory, and `getcwd` fails there. The notice here has the flag `FUSE_EXPIRE_ONLY` (include/uapi/linux/fuse.h, FUSE 7.38, Linux 6.2).
//! Older kernels ignore the flag, and drop the name.
//!
//! Only names of directories expire, and only if no look-up of the name is under way. The kernel looks a name that it has up without the
//! directory's lock, and keeps it for as long as the answer says, also if a notice came before it took the answer in: then a name
//! that expired would count again, though the manager was told that the kernel has forgotten it. One that was dropped does not come back.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tessera_mount::namespace::Name;

/// Directories that are remembered.
const MAX_DIRECTORIES: usize = 65_536;
/// The kernel takes an answer in so soon after it was written.
const TAKEN_IN: Duration = Duration::from_millis(50);

/// Which names expire: those of directories that no look-up is about.
#[derive(Default)]
pub struct Lookups(Mutex<State>);

#[derive(Default)]
struct State {
    /// Names of directories that the kernel got, and when a look-up of each was answered last.
    directories: HashMap<Name, Option<Instant>>,
    /// Look-ups that are not answered.
    under_way: HashMap<Name, u32>,
}

/// A look-up, until its answer is written.
pub struct LookingUp<'a> {
    lookups: &'a Lookups,
    name: Name,
    is_directory: bool,
}

impl Lookups {
    /// A look-up begins.
    pub fn begin(&self, name: Name) -> LookingUp<'_> {
        *self.0.lock().under_way.entry(name.clone()).or_default() += 1;
        LookingUp { lookups: self, name, is_directory: false }
    }

    /// The kernel gets the name of a directory while it holds the lock of the one above, so no notice comes before it takes that in.
    pub fn made(&self, name: Name) {
        let mut state = self.0.lock();
        state.make_room();
        state.directories.entry(name).or_default();
    }

    /// Whether a name may expire. If not, it is dropped.
    pub fn may_expire(&self, name: &Name, now: Instant) -> bool {
        let state = self.0.lock();
        let is_idle =
            |answered: &Option<Instant>| answered.is_none_or(|at| now.saturating_duration_since(at) > TAKEN_IN);
        state.directories.get(name).is_some_and(is_idle) && !state.under_way.contains_key(name)
    }
}

impl State {
    fn make_room(&mut self) {
        if self.directories.len() >= MAX_DIRECTORIES {
            self.directories.clear();
        }
    }
}

impl LookingUp<'_> {
    /// The name is that of a directory.
    pub fn found_directory(&mut self) {
        self.is_directory = true;
    }
}

impl Drop for LookingUp<'_> {
    fn drop(&mut self) {
        let mut state = self.lookups.0.lock();
        let count = state.under_way.get_mut(&self.name).expect("it is counted");
        *count -= 1;
        if *count == 0 {
            state.under_way.remove(&self.name);
        }
        state.make_room();
        let name = std::mem::take(&mut self.name);
        match self.is_directory {
            true => _ = state.directories.insert(name, Some(Instant::now())),
            false => _ = state.directories.remove(&name),
        }
    }
}

/// `FUSE_NOTIFY_INVAL_ENTRY`.
const NOTICE: i32 = 3;
/// `FUSE_EXPIRE_ONLY`.
const EXPIRE_ONLY: u32 = 1;
/// Bytes of `fuse_out_header` and `fuse_notify_inval_entry_out`.
const HEADER_BYTES: usize = 32;

/// The kernel's side of a mount, for notices.
pub struct Expiry(OwnedFd);

impl Expiry {
    /// `device` is the mount's connection.
    pub fn new(device: OwnedFd) -> Expiry {
        Expiry(device)
    }

    /// The kernel must look `name` up before it uses it again. Waits while an operation in the directory is under way.
    ///
    /// # Errors
    /// `ENOENT`: the kernel has no such name; others if the mount is gone.
    pub fn expire(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let notice = notice(parent, name);
        let written = rustix::io::write(&self.0, &notice)?;
        assert_eq!(written, notice.len(), "the kernel takes a notice as a whole");
        Ok(())
    }
}

fn notice(parent: u64, name: &[u8]) -> Vec<u8> {
    let name_bytes = u32::try_from(name.len()).expect("a name is short");
    let total = HEADER_BYTES + name.len() + 1;
    let mut notice = Vec::with_capacity(total);
    notice.extend(u32::try_from(total).expect("a name is short").to_ne_bytes());
    notice.extend(NOTICE.to_ne_bytes());
    // No request has this number.
    notice.extend(0u64.to_ne_bytes());
    notice.extend(parent.to_ne_bytes());
    notice.extend(name_bytes.to_ne_bytes());
    notice.extend(EXPIRE_ONLY.to_ne_bytes());
    assert_eq!(notice.len(), HEADER_BYTES, "the layout of the kernel's structures");
    notice.extend(name);
    notice.push(0);
    notice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_that_nobody_looks_up_expire() {
        let (lookups, name, began) = (Lookups::default(), || (1, b"dir".to_vec()), Instant::now());
        let may_expire = |now| lookups.may_expire(&name(), now);
        assert!(!may_expire(began), "it may be a file");
        lookups.made(name());
        assert!(may_expire(began));
        let mut one = lookups.begin(name());
        one.found_directory();
        assert!(!may_expire(began));
        let mut two = lookups.begin(name());
        two.found_directory();
        drop(one);
        assert!(!may_expire(began), "another one is under way");
        drop(two);
        assert!(!may_expire(began), "the kernel may not have taken the answer in");
        assert!(may_expire(Instant::now() + 2 * TAKEN_IN));
        drop(lookups.begin(name()));
        assert!(!may_expire(began), "there is no directory of that name any more");
        (0..=MAX_DIRECTORIES as u64).for_each(|at| lookups.made((at, Vec::new())));
        assert!(lookups.0.lock().directories.len() <= MAX_DIRECTORIES && lookups.0.lock().under_way.is_empty());
    }

    #[test]
    fn a_notice_is_laid_out_as_the_kernel_reads_it() {
        let expected: [u8; 36] = [
            36, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x42, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, b'a',
            b'b', b'c', 0,
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(notice(0x42, b"abc"), expected);
        }
    }
}
