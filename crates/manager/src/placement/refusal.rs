//! The error for a chunk or class that has no group: how many hosts are needed, how many there are, and the way out (P14).

use crate::db::rows::DiskRow;
use crate::placement::room::{Purpose, has_room};
use crate::soft::stats::ClusterStats;
use std::collections::BTreeSet;
use tessera_policy::human_size;
use tessera_wire::{Code, Error};

/// What has no group.
pub(crate) struct Wanted<'a> {
    /// The class.
    pub spec: &'a str,
    /// Its number of fragments.
    pub width: u32,
    /// Length of the chunk; 0: no chunk is placed yet, the class needs its first groups.
    pub len_bytes: u64,
    /// Room that it needs on a disk.
    pub room_bytes: u64,
    /// How much of a disk it may use.
    pub purpose: Purpose,
}

/// The error that says why there is no group: too few hosts are up, too few of them have room, or groups are yet to be opened.
pub(crate) fn why_no_group(disks: &[DiskRow], stats: &ClusterStats, wanted: &Wanted<'_>) -> Error {
    let up = hosts(disks, DiskRow::writable);
    if up.len() < wanted.width as usize {
        return too_few_hosts(&hosts(disks, |_| true), &up, wanted);
    }
    let fits = |d: &DiskRow| has_room(stats, d.disk_id, d.capacity_bytes, wanted.room_bytes, wanted.purpose);
    let with_room = hosts(disks, |d| d.writable() && fits(d));
    if with_room.len() < wanted.width as usize {
        return no_space(&up, &with_room, wanted);
    }
    let why = "each open group has a member that is down or full; new groups are being opened, try again";
    Error::new(Code::Unavailable, format!("{}: {why}", wanted.spec))
}

fn hosts(disks: &[DiskRow], which: impl Fn(&DiskRow) -> bool) -> BTreeSet<&str> {
    disks.iter().filter(|d| which(d)).map(|d| d.host.as_str()).collect()
}

fn too_few_hosts(all: &BTreeSet<&str>, up: &BTreeSet<&str>, wanted: &Wanted<'_>) -> Error {
    let away = names(all, up);
    let way_out = match away.is_empty() {
        true => "add nodes on further hosts, or choose a class with fewer fragments".to_string(),
        false => {
            format!("start or return {away} (not up, or draining), add nodes, or choose a class with fewer fragments")
        }
    };
    let (spec, width, is) = (wanted.spec, wanted.width, if up.len() == 1 { "is" } else { "are" });
    Error::new(Code::TooFewHosts, format!("{spec} needs {width} hosts, {} {is} up; {way_out}", up.len()))
}

fn no_space(up: &BTreeSet<&str>, with_room: &BTreeSet<&str>, wanted: &Wanted<'_>) -> Error {
    let what = match wanted.len_bytes {
        0 => "a chunk".to_string(),
        bytes => format!("a chunk of {}", human_size(bytes)),
    };
    let (spec, width, have) = (wanted.spec, wanted.width, if with_room.len() == 1 { "has" } else { "have" });
    Error::new(
        Code::NoSpace,
        format!(
            "{spec}: {what} needs room on {width} hosts, {} {have} it; full: {}; delete files and run `tessera gc`, or add disks",
            with_room.len(),
            names(up, with_room),
        ),
    )
}

/// Names of the hosts in `all` that are not in `without`: the first few.
fn names(all: &BTreeSet<&str>, without: &BTreeSet<&str>) -> String {
    all.difference(without).take(8).copied().collect::<Vec<_>>().join(", ")
}
