//! Directories, links and attributes, many in one request.

use crate::rig::*;
use std::collections::BTreeMap;
use tessera_wire::meta::*;
use tessera_wire::{Attr, Code, InodeKind};

fn directory(parent: u64, name: &str) -> NewEntry {
    NewEntry { parent, name: name.into(), mode: 0o750, uid: 7, gid: 8, ..NewEntry::default() }
}

fn link(parent: u64, name: &str, target: &str) -> NewEntry {
    NewEntry { target: target.into(), mtime_ns: Some(5), ..directory(parent, name) }
}

fn make(rig: &mut Rig, entries: Vec<NewEntry>) -> Vec<Result<u64, Code>> {
    let op_id = rig.op();
    let made = rig.ask(&MakeEntries { op_id, entries }).unwrap().made;
    made.into_iter().map(|made| made.refused.map_or(Ok(made.ino), |error| Err(error.code()))).collect()
}

/// Attributes of everything below the root by path, without what differs from run to run.
fn tree(rig: &mut Rig) -> BTreeMap<String, Attr> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![(String::new(), 1)]);
    while let Some((path, ino)) = waiting.pop() {
        for entry in rig.ask(&List { ino, ..List::default() }).unwrap().entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let attr = entry.attr.unwrap();
            if attr.kind() == InodeKind::Directory {
                waiting.push((path.clone(), attr.ino));
            }
            let mtime_ns = if attr.mtime_ns < 100 { attr.mtime_ns } else { 0 };
            found.insert(path, Attr { ino: 0, mtime_ns, ctime_ns: 0, ..attr });
        }
    }
    found
}

#[test]
fn entries_made_together_are_those_made_one_by_one() {
    let (mut together, mut alone) = (Rig::new(4), Rig::new(4));
    let [d, alone_d] = [&mut together, &mut alone].map(|rig| rig.mkdir(1, "d"));
    let made = make(&mut together, vec![directory(d, "a"), link(d, "l", "a/b"), directory(1, "e")]);
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    for (parent, name) in [(alone_d, "a"), (1, "e")] {
        let (op_id, name) = (alone.op(), name.into());
        alone.ask(&MakeDir { op_id, parent, name, mode: 0o750, uid: 7, gid: 8, ..MakeDir::default() }).unwrap();
    }
    let (op_id, name, target) = (alone.op(), b"l".to_vec(), b"a/b".to_vec());
    let symlink = Symlink { op_id, parent: alone_d, name, target, uid: 7, gid: 8 };
    let ino = alone.ask(&symlink).unwrap().attr.unwrap().ino;
    let op_id = alone.op();
    alone.ask(&SetAttr { op_id, ino, mtime_ns: Some(5), ..SetAttr::default() }).unwrap();
    assert_eq!(tree(&mut together), tree(&mut alone));
    assert_eq!(tree(&mut together)["/d"].nlink, 3, "itself, its name, and `a`");
    together.audit();
}

#[test]
fn an_entry_that_is_refused_is_left_out_and_the_others_are_made() {
    let mut rig = Rig::new(4);
    let there = rig.mkdir(1, "there");
    let file = rig.put(1, "file", b"abc").unwrap().ino;
    let long = "x".repeat(4_096);
    let entries = vec![
        directory(1, "there"),
        directory(1, "file"),
        directory(file, "in-a-file"),
        directory(999_999, "nowhere"),
        directory(1, ""),
        directory(1, "a/b"),
        directory(1, "new"),
        directory(1, "new"),
        link(1, "there", "x"),
        link(1, "long", &long),
        link(1, "link", "x"),
        directory(1, "link"),
    ];
    let request = MakeEntries { op_id: rig.op(), entries };
    let reply = rig.ask(&request).unwrap();
    let made = make_codes(&reply);
    let new = reply.made[6].ino;
    let refused = |code| (0, Some(code));
    let expected = [
        (there, None),
        refused(Code::Exists),
        refused(Code::NotDirectory),
        refused(Code::NotFound),
        refused(Code::Invalid),
        refused(Code::Invalid),
        (new, None),
        (new, None),
        refused(Code::Exists),
        refused(Code::Invalid),
        (reply.made[10].ino, None),
        refused(Code::Exists),
    ];
    assert_eq!(made, expected);
    assert_eq!(rig.ask(&request).unwrap(), reply, "a repeated request has the same answer");
    let names: Vec<String> = tree(&mut rig).into_keys().collect();
    assert_eq!(names, ["/file", "/link", "/new", "/there"]);
    let entries = vec![directory(1, "d"); MAX_AT_ONCE + 1];
    let op_id = rig.op();
    assert_eq!(rig.ask(&MakeEntries { op_id, entries }).unwrap_err().code(), Code::Invalid);
    assert!(!tree(&mut rig).contains_key("/d"));
    rig.audit();
}

fn make_codes(reply: &MakeEntriesReply) -> Vec<(u64, Option<Code>)> {
    reply.made.iter().map(|made| (made.ino, made.refused.as_ref().map(|error| error.code()))).collect()
}

#[test]
fn attributes_that_are_refused_stay_and_the_others_are_set() {
    let mut rig = Rig::new(4);
    let [a, b] = ["a", "b"].map(|name| rig.mkdir(1, name));
    let set = |ino: u64, mode: u32| SetAttr { ino, mode: Some(mode), mtime_ns: Some(9), ..SetAttr::default() };
    let inodes = vec![set(a, 0o700), set(999_999, 0o700), set(b, 0o1_000_000), set(b, 0o711)];
    let request = SetAttrs { op_id: rig.op(), inodes };
    let refused = rig.ask(&request).unwrap().refused;
    let refused: Vec<(u32, Code)> = refused.into_iter().map(|of| (of.index, of.error.unwrap().code())).collect();
    assert_eq!(refused, [(1, Code::NotFound), (2, Code::Invalid)]);
    let found = tree(&mut rig);
    assert_eq!((found["/a"].mode, found["/b"].mode, found["/b"].mtime_ns), (0o700, 0o711, 9));
    let inodes = vec![set(a, 0o755); MAX_AT_ONCE + 1];
    let op_id = rig.op();
    assert_eq!(rig.ask(&SetAttrs { op_id, inodes }).unwrap_err().code(), Code::Invalid);
    assert_eq!(tree(&mut rig)["/a"].mode, 0o700);
}

/// Together they fill a page of `List`: 4,096 names.
#[test]
fn directories_are_listed_together_up_to_a_page() {
    let mut rig = Rig::new(4);
    let file = rig.put(1, "file", b"abc").unwrap().ino;
    let mut filled = |name: &str, count: usize| {
        let ino = rig.mkdir(1, name);
        for first in (0..count).step_by(1_000) {
            let entries = (first..count.min(first + 1_000)).map(|i| directory(ino, &format!("{i:05}")));
            assert!(make(&mut rig, entries.collect()).iter().all(Result::is_ok));
        }
        ino
    };
    let [none, few, many, more] =
        [("none", 0), ("few", 3), ("many", 4_000), ("more", 5_000)].map(|(n, c)| filled(n, c));
    let mut list = |inos: &[u64]| -> Vec<Result<(usize, bool), Code>> {
        let reply = rig.ask(&ListMany { inos: inos.to_vec() }).unwrap().directories;
        let of = |listed: ListedDirectory| match listed.refused {
            Some(error) => Err(error.code()),
            None => Ok((listed.entries.len(), listed.more)),
        };
        reply.into_iter().map(of).collect()
    };
    let (missing, no_directory) = (Err(Code::NotFound), Err(Code::NotDirectory));
    assert_eq!(list(&[none, few, 999_999, file]), [Ok((0, false)), Ok((3, false)), missing, no_directory]);
    assert_eq!(list(&[many, few, few]), [Ok((4_000, false)), Ok((3, false)), Ok((3, false))]);
    assert_eq!(list(&[many, many, few]), [Ok((4_000, false))], "the second is cut, so it is left to the next request");
    assert_eq!(list(&[more, few]), [Ok((4_096, true))]);
    assert_eq!(list(&[]), []);
    assert_eq!(rig.ask(&ListMany { inos: vec![few; MAX_AT_ONCE + 1] }).unwrap_err().code(), Code::Invalid);
}

/// A frame has 16 MiB; 4,096 links may have more.
#[test]
fn a_page_has_no_more_bytes_than_a_frame_bears() {
    let mut rig = Rig::new(4);
    let target = "t".repeat(4_000);
    let many = |rig: &mut Rig, name: &str, count: usize| {
        let ino = rig.mkdir(1, name);
        for first in (0..count).step_by(1_000) {
            let links = (first..count.min(first + 1_000)).map(|i| link(ino, &format!("{i:05}"), &target));
            assert!(make(rig, links.collect()).iter().all(Result::is_ok));
        }
        ino
    };
    let [a, b] = ["a", "b"].map(|name| many(&mut rig, name, 600));
    let reply = rig.ask(&ListMany { inos: vec![a, b] }).unwrap();
    assert_eq!(reply.directories.len(), 1, "the second would not fit");
    assert_eq!((reply.directories[0].entries.len(), reply.directories[0].more), (600, false));
    let large = many(&mut rig, "large", 2_500);
    let (mut found, mut after) = (0, Vec::new());
    loop {
        let page = rig.ask(&List { ino: large, after: after.clone(), ..List::default() }).unwrap();
        assert!(prost::Message::encoded_len(&page) < 5 << 20, "{} entries", page.entries.len());
        found += page.entries.len();
        after = page.entries.last().unwrap().name.clone();
        if !page.more {
            break;
        }
    }
    assert_eq!(found, 2_500);
    let listed = rig.ask(&ListMany { inos: vec![large, a] }).unwrap().directories;
    assert!(listed.len() == 1 && listed[0].more);
}

#[test]
fn a_link_may_be_as_old_as_1970() {
    let mut rig = Rig::new(4);
    let old = NewEntry { mtime_ns: Some(0), ..link(1, "old", "x") };
    let new = NewEntry { mtime_ns: None, ..link(1, "new", "x") };
    make(&mut rig, vec![old, new]);
    let entries = rig.ask(&List { ino: 1, ..List::default() }).unwrap().entries;
    let times: Vec<i64> = entries.into_iter().map(|entry| entry.attr.unwrap().mtime_ns).collect();
    assert!(times[0] > 0 && times[1] == 0, "{times:?}");
}
