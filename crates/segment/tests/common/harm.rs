//! Damage to the files of a disk, and copies of a disk to damage.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_disk::{Disk, OpenMode, SimDisk};

/// Damage to apply to a file.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    Flip { at: u64, bit: u8 },
    Zero { at: u64, len: u64 },
    Cut { len: u64 },
}

pub fn harm() -> impl Strategy<Value = Harm> {
    let at = 0..20_000u64;
    prop_oneof![
        4 => (at.clone(), 0..8u8).prop_map(|(at, bit)| Harm::Flip { at, bit }),
        1 => (at.clone(), 1..2000u64).prop_map(|(at, len)| Harm::Zero { at, len }),
        1 => at.prop_map(|len| Harm::Cut { len }),
    ]
}

pub fn apply(disk: &dyn Disk, path: &str, harm: Harm) {
    let Ok(file) = disk.open(path, OpenMode::Existing) else { return };
    let len = file.len().unwrap();
    match harm {
        Harm::Flip { at, bit } if len > 0 => {
            let mut byte = [0];
            file.read_at(at % len, &mut byte).unwrap();
            file.write_at(at % len, &[byte[0] ^ (1 << bit)]).unwrap();
        }
        Harm::Zero { at, len: zeros } if len > 0 => {
            let zeros = zeros.min(len - at % len);
            file.write_at(at % len, &vec![0; zeros as usize]).unwrap();
        }
        Harm::Cut { len: to } if len > 0 => file.truncate(to % len).unwrap(),
        _ => {}
    }
}

/// The files of a disk, to copy to any number of fresh disks.
pub fn files(disk: &SimDisk) -> BTreeMap<String, Vec<u8>> {
    disk.paths().into_iter().map(|path| (path.clone(), disk.contents(&path).unwrap())).collect()
}

pub fn copy(files: &BTreeMap<String, Vec<u8>>) -> SimDisk {
    let disk = SimDisk::new(0);
    for dir in ["segments", "log"] {
        disk.create_dir(dir).unwrap();
    }
    for (path, bytes) in files {
        disk.open(path, OpenMode::Create).unwrap().write_at(0, bytes).unwrap();
    }
    disk
}
