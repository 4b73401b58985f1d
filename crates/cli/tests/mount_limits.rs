//! Limits of the mount: an operation that it does not support, or that fails, returns the errno that docs/mount.md names.

mod common;

use common::mounted::{Mounted, can_mount};
use common::{Cluster, eventually};
use std::fs::{self, File};
use std::io::Write;

fn with_mount(test: impl FnOnce(&Cluster, &Mounted)) {
    let c = Cluster::start(6);
    if can_mount(&c) {
        let m = Mounted::new(&c, "mnt", &[]);
        test(&c, &m);
    }
}

/// Tries operations that a mount does not support; prints the errno of each, one a line.
const CANNOT: &str = r#"
import ctypes, errno, fcntl, os, struct, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
def says(what, do):
    try:
        do()
        print(what, "done")
    except OSError as e:
        print(what, errno.errorcode[e.errno])
long = ctypes.c_long
open("f", "wb").write(b"x" * 10000)
open("g", "wb").write(b"y")
f, g = os.open("f", os.O_RDWR), os.open("g", os.O_RDWR)
says("O_TMPFILE", lambda: os.open(".", os.O_TMPFILE | os.O_RDWR))
for name, mode in [("KEEP_SIZE", 1), ("PUNCH_HOLE", 3), ("COLLAPSE_RANGE", 8), ("ZERO_RANGE", 16), ("INSERT_RANGE", 32)]:
    says(name, lambda: call("fallocate", f, mode, long(0), long(4096)))
says("FICLONE", lambda: fcntl.ioctl(g, 0x40049409, f))
says("FIEMAP", lambda: fcntl.ioctl(f, 0xC020660B, bytes(32)))
says("GETFLAGS", lambda: fcntl.ioctl(f, 0x80086601, bytes(8)))
says("WHITEOUT", lambda: call("renameat2", -100, b"f", -100, b"h", 4))
says("security", lambda: os.setxattr("f", "security.x", b"1"))
says("acl", lambda: os.setxattr("f", "system.posix_acl_access",
    struct.pack("<I" + "HHI" * 5, 2, 1, 6, 2**32 - 1, 2, 6, 1, 4, 4, 2**32 - 1, 16, 6, 2**32 - 1, 32, 4, 2**32 - 1)))
says("location", lambda: os.setxattr("f", "user.tessera.location", b"1"))
says("hint", lambda: os.setxattr("f", "user.tessera.nothing", b"1"))
# Not refused, but done in a plain way.
says("fallocate", lambda: call("fallocate", f, 0, long(0), long(20000)))
says("copy_file_range", lambda: os.copy_file_range(f, g, 10000, 0, 0))
os.ftruncate(f, 1 << 20)
print("hole", os.lseek(f, 0, os.SEEK_HOLE), os.fstat(f).st_size)
print("bytes", os.pread(g, 10001, 0) == b"x" * 10000)
os.stat("f"); before = os.stat("f").st_atime_ns; os.pread(f, 10, 0); print("atime", os.stat("f").st_atime_ns == before)
"#;

/// Operations that docs/mount.md lists as unsupported return the errno it names, and change nothing (P14).
#[test]
fn what_is_not_there_is_refused_as_documented() {
    with_mount(|_, m| {
        let run = std::process::Command::new("python3").args(["-c", CANNOT]).arg(&m.path).output().unwrap();
        let said = String::from_utf8(run.stdout).unwrap();
        assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
        let mut wanted = vec!["O_TMPFILE ENOTSUP".to_string()];
        wanted.extend(
            ["KEEP_SIZE", "PUNCH_HOLE", "COLLAPSE_RANGE", "ZERO_RANGE", "INSERT_RANGE", "FICLONE", "FIEMAP"]
                .map(|what| format!("{what} ENOTSUP")),
        );
        wanted.extend(["GETFLAGS ENOTTY", "WHITEOUT EINVAL", "security ENOTSUP", "acl ENOTSUP"].map(String::from));
        wanted.extend(["location EPERM", "hint EINVAL", "fallocate done", "copy_file_range done"].map(String::from));
        wanted.extend(["hole 1048576 1048576", "bytes True", "atime True"].map(String::from));
        assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
        assert_eq!(fs::read_dir(&m.path).unwrap().count(), 2, "nothing was made");
    });
}

/// Files of up to 128 KiB are stored as copies, whatever a program does with them: three hosts suffice.
#[test]
fn short_files_need_no_more_hosts_than_copies_do() {
    let c = Cluster::start(4);
    if !can_mount(&c) {
        return;
    }
    let m = Mounted::new(&c, "mnt", &[]);
    for len in [10, 30_000] {
        let (path, content) = (m.at(&format!("f{len}")), common::tree::bytes(21, len));
        fs::write(&path, vec![b'a'; len]).unwrap();
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        file.write_all(&content).unwrap();
        file.set_len(len as u64 - 1).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert!(c.ok(&["cat", &format!("tess:/f{len}")]).stdout == content[..len - 1]);
    }
}

/// P2: data that could not be stored is reported and later shown to no reader: neither its bytes nor its length.
#[test]
fn what_could_not_be_committed_is_not_shown() {
    with_mount(|c, m| {
        let hint = |value: &str| {
            let none = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(m.at("d"), "user.Replication", value.as_bytes(), none).unwrap();
        };
        fs::create_dir(m.at("d")).unwrap();
        fs::write(m.at("d/old"), b"what was there before").unwrap();
        // Ask for more copies than there are hosts.
        hint("9");
        rustix::fs::setxattr(m.at("d/old"), "user.Replication", b"9", rustix::fs::XattrFlags::empty()).unwrap();
        for (name, len) in [("small", 1000), ("large", 9 << 20), ("old", 5000)] {
            let path = m.at(&format!("d/{name}"));
            let mut file = File::create(&path).unwrap();
            let written = file.write_all(&common::tree::bytes(20, len)).and_then(|()| file.sync_all());
            let errno = written.unwrap_err().raw_os_error();
            // ETIMEDOUT, or EIO where the kernel wrote the data in the background and forgot the cause.
            assert!(matches!(errno, Some(110 | 5)), "{name}: {errno:?}");
            drop(file);
            let there = if name == "old" { &b"what was there before"[..] } else { b"" };
            eventually("what was not stored is gone", || {
                fs::metadata(&path).unwrap().len() == there.len() as u64 && fs::read(&path).unwrap() == there
            });
        }
        let log = fs::read_to_string(c.log("mnt")).unwrap();
        assert!(log.contains("replica:9 needs 9 hosts, 6 are up"), "{log}");
        // With a hint that can be met, writes succeed again.
        hint("2");
        fs::write(m.at("d/new"), b"new").unwrap();
        assert!(c.ok(&["cat", "tess:/d/new"]).stdout == b"new");
    });
}
