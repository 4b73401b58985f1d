//! The namespace against the simplest model (P7): a map from inode to node, and maps of names.

use crate::namespace::names;
use crate::rig::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::cell::RefCell;
use std::collections::BTreeMap;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, InodeKind};

#[derive(Debug, Clone)]
enum Op {
    MakeDir { dir: usize, name: u8, exist_ok: bool },
    Symlink { dir: usize, name: u8 },
    Create { dir: usize, name: u8 },
    MakeNode { dir: usize, name: u8, pipe: bool, exist_ok: bool },
    Link { from: usize, dir: usize, name: u8 },
    Unlink { dir: usize, name: u8, directory: bool },
    Rename { from: usize, name: u8, to: usize, to_name: u8, no_replace: bool },
    Exchange { from: usize, name: u8, to: usize, to_name: u8 },
    SetHint { dir: usize },
    SetMode { dir: usize, mode: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let dir = || 0usize..6;
    let name = || b'a'..b'e';
    prop_oneof![
        3 => (dir(), name(), any::<bool>()).prop_map(|(dir, name, exist_ok)| Op::MakeDir { dir, name, exist_ok }),
        1 => (dir(), name()).prop_map(|(dir, name)| Op::Symlink { dir, name }),
        2 => (dir(), name()).prop_map(|(dir, name)| Op::Create { dir, name }),
        2 => (dir(), name(), any::<bool>(), any::<bool>())
            .prop_map(|(dir, name, pipe, exist_ok)| Op::MakeNode { dir, name, pipe, exist_ok }),
        2 => (dir(), name(), dir(), name()).prop_map(|(from, name, to, to_name)| Op::Exchange { from, name, to, to_name }),
        1 => (0usize..8, dir(), name()).prop_map(|(from, dir, name)| Op::Link { from, dir, name }),
        2 => (dir(), name(), any::<bool>()).prop_map(|(dir, name, directory)| Op::Unlink { dir, name, directory }),
        4 => (dir(), name(), dir(), name(), any::<bool>())
            .prop_map(|(from, name, to, to_name, no_replace)| Op::Rename { from, name, to, to_name, no_replace }),
        1 => dir().prop_map(|dir| Op::SetHint { dir }),
        1 => (dir(), 0u32..0o1000).prop_map(|(dir, mode)| Op::SetMode { dir, mode }),
    ]
}

#[derive(Debug, Clone)]
struct Node {
    kind: InodeKind,
    names: BTreeMap<u8, u64>,
    parent: u64,
    nlink: u32,
    hinted: bool,
    mode: u32,
}

struct Model {
    nodes: BTreeMap<u64, Node>,
    root: u64,
    /// Directories and files in order of creation, for ops to pick from; some may be gone.
    dirs: Vec<u64>,
    files: Vec<u64>,
}

impl Model {
    fn dir(&self, index: usize) -> u64 {
        self.dirs[index % self.dirs.len()]
    }

    fn directory(&self, ino: u64) -> Result<&Node, Code> {
        self.nodes.get(&ino).ok_or(Code::NotFound)
    }

    fn child(&self, dir: u64, name: u8) -> Result<Option<u64>, Code> {
        Ok(self.directory(dir)?.names.get(&name).copied())
    }

    fn inside(&self, moved: u64, mut at: u64) -> bool {
        while at != self.root {
            if at == moved {
                return true;
            }
            at = self.nodes[&at].parent;
        }
        at == moved
    }

    fn add(&mut self, ino: u64, kind: InodeKind, dir: u64, name: u8, mode: u32) {
        let hinted = self.nodes[&dir].hinted && matches!(kind, InodeKind::File | InodeKind::Directory);
        let node = Node { kind, names: BTreeMap::new(), parent: dir, nlink: 1, hinted, mode };
        self.nodes.insert(ino, node);
        self.nodes.get_mut(&dir).unwrap().names.insert(name, ino);
    }

    fn remove(&mut self, dir: u64, name: u8) {
        let ino = self.nodes.get_mut(&dir).unwrap().names.remove(&name).unwrap();
        let node = self.nodes.get_mut(&ino).unwrap();
        node.nlink -= 1;
        if node.nlink == 0 {
            self.nodes.remove(&ino);
        }
    }

    fn removable(&self, ino: u64) -> Result<(), Code> {
        if self.nodes[&ino].names.is_empty() { Ok(()) } else { Err(Code::NotEmpty) }
    }

    /// What the manager must do: Ok, or this code.
    fn expect(&self, op: &Op) -> Result<(), Code> {
        match *op {
            Op::MakeDir { dir, name, exist_ok } => match self.child(self.dir(dir), name)? {
                Some(there) if exist_ok && self.nodes[&there].kind == InodeKind::Directory => Ok(()),
                Some(_) => Err(Code::Exists),
                None => Ok(()),
            },
            Op::Symlink { dir, name } => match self.child(self.dir(dir), name)? {
                Some(_) => Err(Code::Exists),
                None => Ok(()),
            },
            Op::Create { dir, name } => match self.child(self.dir(dir), name)? {
                Some(there) => match self.nodes[&there].kind {
                    InodeKind::Directory => Err(Code::IsDirectory),
                    InodeKind::File => Ok(()),
                    _ => Err(Code::Unsupported),
                },
                None => Ok(()),
            },
            Op::MakeNode { dir, name, pipe, exist_ok } => match self.child(self.dir(dir), name)? {
                Some(there) if exist_ok && !pipe && self.nodes[&there].kind == InodeKind::File => Ok(()),
                Some(_) => Err(Code::Exists),
                None => Ok(()),
            },
            Op::Exchange { from, name, to, to_name } => {
                let (from, to) = (self.dir(from), self.dir(to));
                let one = self.child(from, name)?.ok_or(Code::NotFound)?;
                self.directory(to)?;
                let is_dir = |ino: u64| self.nodes[&ino].kind == InodeKind::Directory;
                if is_dir(one) && self.inside(one, to) {
                    return Err(Code::Invalid);
                }
                let other = self.child(to, to_name)?.ok_or(Code::NotFound)?;
                match is_dir(other) && self.inside(other, from) {
                    true => Err(Code::Invalid),
                    false => Ok(()),
                }
            }
            Op::Link { from, dir, name } => {
                let Some(&from) = self.files.get(from) else { return Err(Code::NotFound) };
                self.nodes.get(&from).ok_or(Code::NotFound)?;
                match self.child(self.dir(dir), name)? {
                    Some(_) => Err(Code::Exists),
                    None => Ok(()),
                }
            }
            Op::Unlink { dir, name, directory } => {
                let ino = self.child(self.dir(dir), name)?.ok_or(Code::NotFound)?;
                match (directory, self.nodes[&ino].kind == InodeKind::Directory) {
                    (false, true) => Err(Code::IsDirectory),
                    (true, false) => Err(Code::NotDirectory),
                    _ => self.removable(ino),
                }
            }
            Op::Rename { from, name, to, to_name, no_replace } => {
                let ino = self.child(self.dir(from), name)?.ok_or(Code::NotFound)?;
                let to = self.dir(to);
                self.directory(to)?;
                let is_dir = self.nodes[&ino].kind == InodeKind::Directory;
                if is_dir && self.inside(ino, to) {
                    return Err(Code::Invalid);
                }
                let Some(there) = self.child(to, to_name)? else { return Ok(()) };
                match (is_dir, self.nodes[&there].kind == InodeKind::Directory) {
                    _ if no_replace => Err(Code::Exists),
                    _ if there == ino => Ok(()),
                    (true, false) => Err(Code::NotDirectory),
                    (false, true) => Err(Code::IsDirectory),
                    _ => self.removable(there),
                }
            }
            Op::SetHint { dir } | Op::SetMode { dir, .. } => self.directory(self.dir(dir)).map(|_| ()),
        }
    }
}

/// Runs `op` on both; returns the manager's refusal, if any.
fn step(rig: &mut Rig, model: &mut Model, op: &Op) -> Result<(), Error> {
    let op_id = rig.op();
    match *op {
        Op::MakeDir { dir, name, exist_ok } => {
            let parent = model.dir(dir);
            let request = MakeDir { op_id, parent, name: vec![name], mode: 0o750, exist_ok, ..Default::default() };
            let ino = rig.ask(&request)?.attr.unwrap().ino;
            if !model.nodes.contains_key(&ino) {
                model.add(ino, InodeKind::Directory, parent, name, 0o750);
                model.dirs.push(ino);
            }
        }
        Op::Symlink { dir, name } => {
            let parent = model.dir(dir);
            let request = Symlink { op_id, parent, name: vec![name], target: b"x/y".to_vec(), ..Default::default() };
            let ino = rig.ask(&request)?.attr.unwrap().ino;
            model.add(ino, InodeKind::Symlink, parent, name, 0o777);
            model.files.push(ino);
        }
        Op::Create { dir, name } => {
            let parent = model.dir(dir);
            let ino = rig.put(parent, std::str::from_utf8(&[name]).unwrap(), b"")?.ino;
            if !model.nodes.contains_key(&ino) {
                model.add(ino, InodeKind::File, parent, name, 0o644);
                model.files.push(ino);
            }
        }
        Op::MakeNode { dir, name, pipe, exist_ok } => {
            let parent = model.dir(dir);
            let kind = if pipe { InodeKind::Fifo } else { InodeKind::File };
            let request = MakeNode {
                op_id,
                parent,
                name: vec![name],
                kind: kind as i32,
                mode: 0o640,
                exist_ok,
                ..Default::default()
            };
            let ino = rig.ask(&request)?.attr.unwrap().ino;
            if !model.nodes.contains_key(&ino) {
                model.add(ino, kind, parent, name, 0o640);
                model.files.push(ino);
            }
        }
        Op::Exchange { from, name, to, to_name } => {
            let (from_parent, to_parent) = (model.dir(from), model.dir(to));
            let (from_name, to_name_bytes) = (vec![name], vec![to_name]);
            rig.ask(&Rename {
                op_id,
                from_parent,
                from_name,
                to_parent,
                to_name: to_name_bytes,
                no_replace: false,
                exchange: true,
            })?;
            let (one, other) = (model.nodes[&from_parent].names[&name], model.nodes[&to_parent].names[&to_name]);
            for (ino, parent, name) in [(one, to_parent, to_name), (other, from_parent, name)] {
                model.nodes.get_mut(&parent).unwrap().names.insert(name, ino);
                if model.nodes[&ino].kind == InodeKind::Directory {
                    model.nodes.get_mut(&ino).unwrap().parent = parent;
                }
            }
        }
        Op::Link { from, dir, name } => {
            let ino = model.files.get(from).copied().unwrap_or(u64::MAX / 4);
            let parent = model.dir(dir);
            rig.ask(&Link { op_id, ino, parent, name: vec![name] })?;
            model.nodes.get_mut(&ino).unwrap().nlink += 1;
            model.nodes.get_mut(&parent).unwrap().names.insert(name, ino);
        }
        Op::Unlink { dir, name, directory } => {
            let parent = model.dir(dir);
            rig.ask(&Unlink { op_id, parent, name: vec![name], directory })?;
            model.remove(parent, name);
        }
        Op::Rename { from, name, to, to_name, no_replace } => {
            let (from_parent, to_parent) = (model.dir(from), model.dir(to));
            let (from_name, to_name_bytes) = (vec![name], vec![to_name]);
            rig.ask(&Rename {
                op_id,
                from_parent,
                from_name,
                to_parent,
                to_name: to_name_bytes,
                no_replace,
                exchange: false,
            })?;
            let ino = model.nodes[&from_parent].names[&name];
            match model.nodes[&to_parent].names.get(&to_name) {
                Some(&there) if there == ino => return Ok(()),
                Some(_) => model.remove(to_parent, to_name),
                None => {}
            }
            model.nodes.get_mut(&from_parent).unwrap().names.remove(&name);
            model.nodes.get_mut(&to_parent).unwrap().names.insert(to_name, ino);
            if model.nodes[&ino].kind == InodeKind::Directory {
                model.nodes.get_mut(&ino).unwrap().parent = to_parent;
            }
        }
        Op::SetHint { dir } => {
            let ino = model.dir(dir);
            let (name, value) = ("user.tessera.lifetime".into(), b"replace:3".to_vec());
            rig.ask(&SetXattr { op_id, ino, name, value, ..Default::default() })?;
            model.nodes.get_mut(&ino).unwrap().hinted = true;
        }
        Op::SetMode { dir, mode } => {
            let ino = model.dir(dir);
            rig.ask(&SetAttr { op_id, ino, mode: Some(mode), ..Default::default() })?;
            model.nodes.get_mut(&ino).unwrap().mode = mode;
        }
    }
    Ok(())
}

fn compare(rig: &mut Rig, model: &Model) {
    for (&ino, node) in &model.nodes {
        let entry = rig.ask(&GetAttr { ino, want_lease: false }).unwrap();
        let attr = entry.attr.unwrap();
        let is_dir = |ino: &u64| model.nodes[ino].kind == InodeKind::Directory;
        let links =
            if is_dir(&ino) { 2 + node.names.values().filter(|c| is_dir(c)).count() as u32 } else { node.nlink };
        assert_eq!((attr.kind, attr.nlink, attr.mode), (node.kind as i32, links, node.mode), "inode {ino}");
        assert_eq!(!entry.hints.is_empty(), node.hinted, "hints of {ino}");
        if node.kind == InodeKind::Directory {
            // In pages of two, to cover page boundaries.
            let mut listed = Vec::new();
            loop {
                let after = listed.last().map_or(Vec::new(), |(name, _): &(u8, u64)| vec![*name]);
                let page = rig.ask(&List { ino, after, limit: 2, ..List::default() }).unwrap();
                listed.extend(page.entries.iter().map(|e| (e.name[0], e.attr.as_ref().unwrap().ino)));
                if !page.more {
                    break;
                }
            }
            assert_eq!(listed, node.names.iter().map(|(&n, &i)| (n, i)).collect::<Vec<_>>(), "names in {ino}");
        }
    }
}

thread_local! {
    static RIG: RefCell<Rig> = RefCell::new(Rig::new(4));
}

fn run(ops: &[Op]) {
    RIG.with_borrow_mut(|rig| {
        let name = format!("case-{}", rig.op());
        let root = rig.mkdir(1, &name);
        let node = Node {
            kind: InodeKind::Directory,
            names: BTreeMap::new(),
            parent: root,
            nlink: 1,
            hinted: false,
            mode: 0o755,
        };
        let mut model = Model { nodes: BTreeMap::from([(root, node)]), root, dirs: vec![root], files: Vec::new() };
        for op in ops {
            let expected = model.expect(op);
            let got = step(rig, &mut model, op).map_err(|e| e.code());
            assert_eq!(got, expected, "{op:?}");
        }
        compare(rig, &model);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_namespace_does_what_its_model_does(ops in prop::collection::vec(op(), 1..16)) {
        run(&ops);
    }
}

#[test]
fn a_long_history_leaves_counts_that_a_recount_confirms() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(op(), 400);
    for _ in 0..5 {
        run(&strategy.new_tree(&mut runner).unwrap().current());
    }
    RIG.with_borrow(|rig| rig.audit());
}

#[test]
fn paths_resolve_and_name_the_directories_passed() {
    let mut rig = Rig::new(4);
    let a = rig.mkdir(1, "a");
    let b = rig.mkdir(a, "b");
    rig.put(b, "f", b"x").unwrap();
    let path = |text: &str| Resolve {
        start: 0,
        components: text.split('/').map(|c| c.as_bytes().to_vec()).collect(),
        want_lease: false,
    };
    let found = rig.ask(&path("a/b/f")).unwrap();
    assert_eq!(found.path, [1, a, b]);
    assert_eq!(found.attr.unwrap().size_bytes, 100);
    assert_eq!(rig.ask(&path("a/b/f/g")).unwrap_err().code(), Code::NotDirectory);
    assert_eq!(rig.ask(&path("a/c")).unwrap_err().code(), Code::NotFound);
    assert_eq!(rig.ask(&path("a/../a")).unwrap_err().code(), Code::Invalid);
}

#[test]
fn a_new_file_takes_its_directorys_hints_and_keeps_them() {
    let mut rig = Rig::new(4);
    let a = rig.mkdir(1, "a");
    let set = |rig: &mut Rig, ino, value: &str| {
        let op_id = rig.op();
        let name = "user.tessera.redundancy".to_string();
        rig.ask(&SetXattr { op_id, ino, name, value: value.as_bytes().to_vec(), ..Default::default() })
    };
    set(&mut rig, a, "auto").unwrap();
    let sub = rig.mkdir(a, "sub");
    let ino = rig.put(sub, "f", b"x").unwrap().ino;
    set(&mut rig, a, "none").unwrap();
    let op_id = rig.op();
    let request = Rename {
        op_id,
        from_parent: sub,
        from_name: b"f".to_vec(),
        to_parent: 1,
        to_name: b"f".to_vec(),
        no_replace: true,
        exchange: false,
    };
    rig.ask(&request).unwrap();
    let xattrs = rig.ask(&ListXattrs { ino }).unwrap().xattrs;
    assert_eq!(xattrs, [Xattr { name: "user.tessera.redundancy".into(), value: b"auto:4+2".to_vec() }]);
    let error = set(&mut rig, a, "raid0").unwrap_err();
    assert!(error.message.contains("allowed"), "{error}");
}

/// A name that is refused stays, and no other one with it.
#[test]
fn a_removal_of_many_names_removes_each_that_may_go() {
    let mut rig = Rig::new(4);
    let make = |rig: &mut Rig, parent: u64, name: &str| {
        let op_id = rig.op();
        let made = rig.ask(&MakeDir { op_id, parent, name: name.into(), ..Default::default() }).unwrap();
        made.attr.unwrap().ino
    };
    let full = make(&mut rig, 1, "full");
    make(&mut rig, full, "d");
    make(&mut rig, 1, "empty");
    let held = rig.put(1, "held", b"abc").unwrap().ino;
    let reader = rig.read(1, "held").unwrap().session_id;
    rig.put(1, "file", b"abc").unwrap();
    let names = ["file", "full", "absent", "", "empty", "held", "file"].map(|name| name.as_bytes().to_vec()).to_vec();
    let request = RemoveNames { op_id: rig.op(), parent: 1, names, within: None };
    let refused = |reply: RemoveNamesReply| -> Vec<(u32, Code)> {
        reply.refused.into_iter().map(|r| (r.index, r.error.unwrap().code())).collect()
    };
    let expected = [(1, Code::NotEmpty), (2, Code::NotFound), (3, Code::Invalid), (6, Code::NotFound)];
    assert_eq!(refused(rig.ask(&request).unwrap()), expected);
    assert_eq!(refused(rig.ask(&request).unwrap()), expected, "a repeated request has the same answer");
    let listed = rig.ask(&List { ino: 1, ..Default::default() }).unwrap().entries;
    assert_eq!(listed.iter().map(|e| &e.name[..]).collect::<Vec<_>>(), [b"full"]);
    assert_eq!(rig.ask(&GetAttr { ino: 1, want_lease: false }).unwrap().attr.unwrap().nlink, 3);
    assert_eq!(rig.ask(&GetAttr { ino: held, want_lease: false }).unwrap().attr.unwrap().nlink, 0, "a reader has it");
    rig.ask(&CloseSession { session_id: reader, ..Default::default() }).unwrap();
    rig.tick(100);
    rig.tick(100);
    assert_eq!(rig.ask(&GetAttr { ino: held, want_lease: false }).unwrap_err().code(), Code::NotFound);
    rig.audit();
}

/// What another client moved away since the requester looked stays.
#[test]
fn a_list_or_removal_within_a_tree_is_refused_outside_of_it() {
    let mut rig = Rig::new(4);
    let [d, keep] = ["d", "keep"].map(|name| rig.mkdir(1, name));
    let s = rig.mkdir(d, "s");
    let t = rig.mkdir(s, "t");
    rig.mkdir(t, "x");
    let rename = |rig: &mut Rig, (from_parent, from_name): (u64, &str), (to_parent, to_name): (u64, &str)| {
        let (from_name, to_name) = (from_name.into(), to_name.into());
        let op_id = rig.op();
        let request = Rename { op_id, from_parent, from_name, to_parent, to_name, ..Rename::default() };
        rig.ask(&request).unwrap();
    };
    let tree = Subtree { components: vec![b"d".to_vec()] };
    let list = |rig: &mut Rig, ino: u64| {
        let reply = rig.ask(&List { ino, within: Some(tree.clone()), ..List::default() });
        reply.map(|page| page.entries.len()).map_err(|error| error.code())
    };
    let remove = |rig: &mut Rig, parent: u64, name: &str| {
        let (op_id, names) = (rig.op(), vec![name.as_bytes().to_vec()]);
        let reply = rig.ask(&RemoveNames { op_id, parent, names, within: Some(tree.clone()) });
        reply.map(|reply| reply.refused.len()).map_err(|error| error.code())
    };
    assert_eq!([d, s, t].map(|ino| list(&mut rig, ino)), [Ok(1); 3]);
    // A directory above what is asked for leaves the tree and comes back.
    rename(&mut rig, (d, "s"), (keep, "s"));
    assert_eq!(
        [d, s, t].map(|ino| list(&mut rig, ino)),
        [Ok(0), Err(Code::VersionConflict), Err(Code::VersionConflict)]
    );
    assert_eq!(remove(&mut rig, t, "x"), Err(Code::VersionConflict));
    rename(&mut rig, (keep, "s"), (d, "other"));
    assert_eq!([d, s, t].map(|ino| list(&mut rig, ino)), [Ok(1); 3]);
    // The top gets another name, and another directory its name.
    rename(&mut rig, (1, "d"), (keep, "d"));
    assert_eq!([d, s].map(|ino| list(&mut rig, ino)), [Err(Code::VersionConflict); 2]);
    rig.mkdir(1, "d");
    assert_eq!([d, s, 1].map(|ino| list(&mut rig, ino)), [Err(Code::VersionConflict); 3]);
    assert_eq!(remove(&mut rig, t, "x"), Err(Code::VersionConflict));
    rename(&mut rig, (keep, "d"), (1, "d"));
    assert_eq!((list(&mut rig, t), list(&mut rig, keep)), (Ok(1), Err(Code::VersionConflict)));
    assert_eq!(remove(&mut rig, t, "x"), Ok(0));
    rig.audit();
}

/// The tree is what its path leads to: a directory above it may be moved, too.
#[test]
fn a_removal_within_a_tree_is_refused_once_a_directory_above_the_tree_was_moved() {
    let mut rig = Rig::new(4);
    let [a, keep] = ["a", "keep"].map(|name| rig.mkdir(1, name));
    let b = rig.mkdir(a, "b");
    let c = rig.mkdir(b, "c");
    let d = rig.mkdir(c, "d");
    rig.mkdir(d, "x");
    let within = Some(Subtree { components: ["a", "b", "c"].map(|name| name.as_bytes().to_vec()).into() });
    let list = |rig: &mut Rig, ino: u64| {
        let reply = rig.ask(&List { ino, within: within.clone(), ..List::default() });
        reply.map(|page| page.entries.len()).map_err(|error| error.code())
    };
    assert_eq!([c, d].map(|ino| list(&mut rig, ino)), [Ok(1); 2]);
    let move_b = |rig: &mut Rig, from_parent: u64, to_parent: u64| {
        let [from_name, to_name] = ["b", "b"].map(|name| name.as_bytes().to_vec());
        let request = Rename { op_id: rig.op(), from_parent, from_name, to_parent, to_name, ..Rename::default() };
        rig.ask(&request).unwrap();
    };
    move_b(&mut rig, a, keep);
    assert_eq!([c, d].map(|ino| list(&mut rig, ino)), [Err(Code::VersionConflict); 2]);
    let request = RemoveNames { op_id: rig.op(), parent: d, names: vec![b"x".to_vec()], within: within.clone() };
    assert_eq!(rig.ask(&request).unwrap_err().code(), Code::VersionConflict);
    let far = Some(Subtree { components: vec![b"a".to_vec(); names::MAX_COMPONENTS + 1] });
    let refused = rig.ask(&List { ino: c, within: far, ..List::default() }).unwrap_err();
    assert_eq!(refused.code(), Code::NameTooLong);
    // Other directories of the same names take its place.
    let other = rig.mkdir(a, "b");
    let new = rig.mkdir(other, "c");
    assert_eq!(
        [c, d, new].map(|ino| list(&mut rig, ino)),
        [Err(Code::VersionConflict), Err(Code::VersionConflict), Ok(0)]
    );
    rig.audit();
}
