//! What a write takes from a file besides its bytes.

use crate::backend::{Backend, NewAttr};
use crate::errno::{Errno, Outcome};
use crate::mount::Mount;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// The mode of a file after a write without the capability `CAP_FSETID`. The set-group-ID bit of a file that its group may not execute
/// stands for mandatory locks, and stays (inode(7)).
fn without_privileges(mode: u32) -> u32 {
    let ends = if mode & GROUP_EXECUTES != 0 { SET_USER_ID | SET_GROUP_ID } else { SET_USER_ID };
    mode & !ends
}

impl<B: Backend> Mount<B> {
    /// A program without `CAP_FSETID` is about to write through this handle: takes the set-user-ID and set-group-ID bits from the file.
    /// The kernel does so by itself only for writes through its pages (FUSE, `FUSE_WRITE_KILL_SUIDGID`).
    ///
    /// # Errors
    /// The store's.
    pub async fn drop_privileges(&self, handle: u64) -> Outcome {
        let file = self.open_file(handle)?;
        let mode_changes = file.mode_changes();
        let known = match self.namespace.attr(file.ino) {
            Some(known) => known,
            // Without a lease the manager is asked once for each open, and once for each change.
            None if file.is_unprivileged() => return Ok(()),
            None => match self.known(file.ino).await {
                // The file has lost its last name.
                Err(Errno::ENOENT) => return Ok(()),
                known => known?,
            },
        };
        let mode = without_privileges(known.attr.mode);
        if mode != known.attr.mode {
            // The next write asks again: a program may set a bit beside this change.
            return self.set_mode(file.ino, mode).await;
        }
        file.set_unprivileged(mode_changes);
        Ok(())
    }

    async fn set_mode(&self, ino: u64, mode: u32) -> Outcome {
        self.change_attributes(ino, NewAttr { mode: Some(mode), ..NewAttr::default() }, None).await?;
        // The kernel must not run the file with the bits that it has cached.
        self.forget_attributes(ino);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_give_privileges_end() {
        for (before, after) in [(0o6755, 0o755), (0o4644, 0o644), (0o2755, 0o755), (0o2644, 0o2644), (0o1777, 0o1777)] {
            assert_eq!(without_privileges(before), after, "{before:o}");
        }
    }
}
