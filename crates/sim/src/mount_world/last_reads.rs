//! The last reads of a run: nothing waits, no program changes anything, and every mount must show the newest versions.

use super::Host;
use super::history::{History, Tree};
use super::model::Model;
use crate::mount_host::env::Env;
use crate::mount_host::fs::At;
use std::cell::RefCell;
use tessera_mount::errno::Errno;
use tessera_wire::InodeKind;

/// The thread of the program that reads.
const THREAD: u32 = 3;
/// More than any file has.
const LONGEST_BYTES: usize = 1 << 20;
/// The kernel looks a name up again if the mount says that the inode is stale.
const ATTEMPTS: usize = 3;

/// Reads every file under each of its names.
pub async fn read_all<H: Host>(mount: usize, host: &H, env: &Env, model: &RefCell<Model>, history: &RefCell<History>) {
    let tree = history.borrow().now();
    let is_file = |ino: &u64| tree.inodes.get(ino).is_some_and(|inode| inode.kind == InodeKind::File);
    for ((parent, name), ino) in tree.names.iter().filter(|(_, ino)| is_file(ino)) {
        if model.borrow().waits(*ino) {
            continue;
        }
        let from_ns = env.now_ns();
        let number = model.borrow_mut().begin(mount, from_ns, format!("last read of inode {ino}"));
        let read = read_file(host, (*parent, name)).await;
        let (now_ns, result) = (env.now_ns(), read.as_ref().map_or_else(|errno| format!("{errno:?}"), |_| "ok".into()));
        model.borrow_mut().end(number, now_ns, &[*ino], result);
        match read {
            Ok(bytes) => model.borrow_mut().last_read(mount, *ino, from_ns, now_ns, &bytes),
            // A push that was late made it anew, or took its name.
            Err(_) if history.borrow().any(from_ns, now_ns, |now: &Tree| now.lookup(*parent, name) != Some(*ino)) => {}
            Err(errno) => {
                let fact = format!("mount {mount} cannot read inode {ino} at the end: {errno:?}");
                model.borrow_mut().broken("P12", *ino, fact);
            }
        }
    }
}

async fn read_file<H: Host>(host: &H, at: At<'_>) -> Result<Vec<u8>, Errno> {
    let mut attempts = 1..=ATTEMPTS;
    loop {
        let is_last = attempts.next() == Some(ATTEMPTS);
        let found = host.lookup(at).await?;
        let handle = match host.open(THREAD, &found, false).await {
            Err(Errno::ESTALE) if !is_last => continue,
            opened => opened?,
        };
        let read = host.read(handle, 0, LONGEST_BYTES).await;
        host.close(handle, handle.0).await?;
        return read;
    }
}
