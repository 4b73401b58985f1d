//! Group members that must leave a lost or draining disk and have no other disk: how many, why, and the way out.

use crate::term::units::{enum_name, plural};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tessera_wire::meta::{ClusterStatus, WaitReason};

/// How many members wait, by reason, on the disks that `of_disk` selects.
pub fn members(s: &ClusterStatus, of_disk: impl Fn(u64) -> bool) -> BTreeMap<WaitReason, u64> {
    let mut members = BTreeMap::new();
    for it in s.members_waiting.iter().filter(|it| of_disk(it.disk_id)) {
        *members.entry(it.reason()).or_default() += it.members;
    }
    members
}

/// What members wait for, and the way out.
pub fn sentence(reason: WaitReason, members: u64) -> String {
    let members = plural(members, "group member");
    match reason {
        WaitReason::NoRoom => format!(
            "no disk on a further host has room for {members}; delete files and run `tessera gc`, or add disks or nodes"
        ),
        WaitReason::NoHost => {
            format!("no further host is up for {members}; start what is down, or add nodes on further hosts")
        }
        WaitReason::Unknown => format!("{members} wait for another disk"),
    }
}

/// For programs.
pub fn document(s: &ClusterStatus) -> Value {
    let reason = |reason: WaitReason| enum_name(reason.as_str_name(), "WAIT_REASON_");
    s.members_waiting
        .iter()
        .map(|it| json!({"disk_id": it.disk_id, "reason": reason(it.reason()), "members": it.members}))
        .collect()
}
