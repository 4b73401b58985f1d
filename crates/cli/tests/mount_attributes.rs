//! Attributes that a write or a program changes on a mount. Skipped, with a message, where there is no FUSE.

mod common;

use common::Cluster;
use common::mounted::{Mounted, can_mount};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

fn python(program: &str, path: &Path) {
    let ran = Command::new("python3").args(["-c", program]).arg(path).output().unwrap();
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
}

/// Two mounts of one store.
fn with_mounts(test: impl FnOnce(&Mounted, &Mounted)) {
    let c = Cluster::start(6);
    if can_mount(&c) {
        test(&Mounted::new(&c, "mnt", &[]), &Mounted::new(&c, "other", &["--cache-ms", "0"]));
    }
}

#[test]
fn a_write_by_another_user_ends_the_bits_that_give_privileges() {
    with_mounts(|m, other| {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("only root can write as another user");
        }
        for (name, before, after) in [("both", 0o6777, 0o777), ("user", 0o4766, 0o766), ("locks", 0o2767, 0o2767)] {
            fs::write(m.at(name), b"program").unwrap();
            fs::set_permissions(m.at(name), fs::Permissions::from_mode(before)).unwrap();
            python("import os, sys; os.write(os.open(sys.argv[1], os.O_WRONLY), b'as root')", &m.at(name));
            assert_eq!(fs::metadata(m.at(name)).unwrap().mode() & 0o7777, before, "{name}: root keeps them");
            python(
                "import os, sys; os.setuid(65534); os.write(os.open(sys.argv[1], os.O_WRONLY), b'changed')",
                &m.at(name),
            );
            assert_eq!(fs::metadata(m.at(name)).unwrap().mode() & 0o7777, after, "{name}");
            assert_eq!(fs::metadata(other.at(name)).unwrap().mode() & 0o7777, after, "{name} on the other mount");
            assert_eq!(fs::read(other.at(name)).unwrap(), b"changed");
        }
    });
}

#[test]
fn times_before_1970_are_those_that_were_set() {
    with_mounts(|m, other| {
        fs::write(m.at("old"), b"").unwrap();
        for ns in [-1_250_000_000i64, -1, -7_000_000_000, 0, 1_000_000_001] {
            python(&format!("import os, sys; os.utime(sys.argv[1], ns=({ns}, {ns}))"), &m.at("old"));
            for mount in [m, other] {
                let meta = fs::metadata(mount.at("old")).unwrap();
                assert_eq!(meta.mtime() * 1_000_000_000 + meta.mtime_nsec(), ns);
            }
        }
    });
}

/// Another mount changes the directory that a program works in, and the one above it: it is still where it was.
#[test]
fn a_working_directory_stays_where_it_is_while_another_mount_changes_it() {
    with_mounts(|m, other| {
        fs::create_dir_all(m.at("above/dir")).unwrap();
        let at = m.at("above/dir");
        let program = "
import os, sys, time
os.chdir(sys.argv[1])
other = sys.argv[2]
# What the kernel has just looked up is dropped.
time.sleep(0.2)
for round in range(20):
    os.stat('.')
    os.listdir('..')
    os.mkdir(f'{other}/above/dir/new{round}')
    os.chmod(f'{other}/above/dir', 0o700 + round % 8)
    os.mkdir(f'{other}/above/new{round}')
    os.chmod(f'{other}/above', 0o710 + round % 8)
    assert os.getcwd() == sys.argv[1]
os.rename(f'{other}/above/dir', f'{other}/above/moved')
assert os.stat('.').st_ino == os.stat(f'{other}/above/moved').st_ino
";
        let ran = Command::new("python3").args(["-c", program]).arg(&at).arg(other.at("")).output().unwrap();
        assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
        assert!(fs::metadata(&at).is_err() && m.at("above/moved").is_dir());
    });
}
