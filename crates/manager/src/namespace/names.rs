//! Names: directories, file names, links and attributes. Reads use the committed state; the functions that take a [`Ctx`]
//! are commands.
//!
//! This module does not touch file content. A command that removes a file's last name lists the file in [`Ctx::orphans`].

use crate::ctx::Ctx;
use crate::db::Db;
use crate::db::meta::{draw, uncount};
use crate::db::sql::{TableRow, args};
use crate::error::{Failure, Result, corrupt_row, invalid, refuse};
use crate::namespace::bulk::refusal;
use crate::namespace::hints::HintSet;
use crate::namespace::inodes::{self, Inode, check_name};
use std::sync::LazyLock;
use tessera_policy::hint_of_attribute;
use tessera_wire::meta::*;
use tessera_wire::{Ack, Code, InodeKind};

/// Longest target of a symbolic link, bytes.
pub const MAX_TARGET_BYTES: usize = 4095;
/// Longest value of an extended attribute, bytes.
pub const MAX_XATTR_BYTES: usize = 64 << 10;
/// Most bytes of names and values of all extended attributes of an inode: one reply lists them.
pub const MAX_XATTRS_BYTES: u64 = 1 << 20;
/// Most components of a path in one request.
pub const MAX_COMPONENTS: usize = 4096;
/// Most names that one [`RemoveNames`] removes.
pub const MAX_REMOVED_NAMES: usize = 1_024;
/// Permission bits that are stored.
const MODE_BITS: u32 = 0o7777;

/// Resolves a path to an inode. The reply's `path` lists the directories on the way.
pub fn resolve(db: &Db, request: &Resolve) -> Result<Entry> {
    check_length(&request.components)?;
    request.components.iter().try_for_each(|name| check_name(name))?;
    let mut at = inodes::get(db, inodes::root_if_none(request.start))?;
    let mut path = Vec::with_capacity(request.components.len());
    for name in &request.components {
        path.push(at.ino);
        at = child(db, &at, name)?;
    }
    Ok(Entry { path, ..at.entry() })
}

fn check_length(components: &[Vec<u8>]) -> Result<()> {
    match components.len() {
        ..=MAX_COMPONENTS => Ok(()),
        count => {
            let text = format!("a path of {count} components; at most {MAX_COMPONENTS} are possible");
            refuse(Code::NameTooLong, text)
        }
    }
}

/// Limit of [`Lookup::ahead`].
const MAX_AHEAD: u32 = 256;

/// Looks up a directory entry, and some that follow.
pub fn lookup(db: &Db, request: &Lookup) -> Result<Entry> {
    check_name(&request.name)?;
    let parent = inodes::directory(db, request.parent)?;
    let mut entry = child(db, &parent, &request.name)?.entry();
    let most = request.ahead.min(MAX_AHEAD);
    if most > 0 {
        let following = entries_after(db, parent.ino, &request.name, most)?.into_iter();
        entry.ahead = following.map(|(name, inode)| NamedEntry { name, entry: Some(inode.entry()) }).collect();
    }
    Ok(entry)
}

/// Names in a directory behind `name`, in byte order, and what they stand for.
fn entries_after(db: &Db, directory: u64, name: &[u8], most: u32) -> Result<Vec<(Vec<u8>, Inode)>> {
    static SELECT: LazyLock<String> = LazyLock::new(|| {
        let columns: Vec<String> = Inode::COLUMNS.iter().map(|column| format!("i.{column}")).collect();
        format!(
            "SELECT d.name, {} FROM dentries d JOIN inodes i ON i.ino = d.ino WHERE d.parent = ?1 AND d.name > ?2
             ORDER BY d.name LIMIT ?3",
            columns.join(", ")
        )
    });
    Ok(db.all(&SELECT, args![directory, name, most])?)
}

/// The inode that `name` in `parent` refers to.
pub(crate) fn child(db: &Db, parent: &Inode, name: &[u8]) -> Result<Inode> {
    if !parent.is_directory() {
        return refuse(Code::NotDirectory, format!("{} is looked for in a file", shown(name)));
    }
    let text = || format!("there is no {} in its directory", shown(name));
    inodes::named(db, parent.ino, name)?.ok_or_else(|| Failure::refused(Code::NotFound, text()))
}

/// Attributes of an inode.
pub fn get_attr(db: &Db, request: &GetAttr) -> Result<Entry> {
    Ok(inodes::get(db, request.ino)?.entry())
}

/// What fits into one answer. Its bytes stay far below a frame's: 4,096 links may have 18 MB of names and targets.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    entries: u32,
    bytes: usize,
}

/// Bytes of names and targets in a page.
const PAGE_BYTES: usize = 4 << 20;

impl Page {
    /// An empty page for so many entries.
    pub fn new(entries: u32) -> Page {
        Page { entries, bytes: PAGE_BYTES }
    }

    /// No entry fits any more.
    pub fn is_full(self) -> bool {
        self.entries == 0 || self.bytes == 0
    }

    /// Uses the room that an entry needs.
    pub fn take(&mut self, entry: &Dirent) {
        let target = entry.attr.as_ref().map_or(0, |attr| attr.symlink_target.len());
        self.bytes = self.bytes.saturating_sub(entry.name.len() + target);
        self.entries = self.entries.saturating_sub(1);
    }
}

/// Lists a page of a directory.
pub fn list(db: &Db, request: &List, max_entries: u32) -> Result<ListReply> {
    list_within(db, request, Page::new(max_entries))
}

/// Lists as much of a directory as a page has room for; one entry at least, if there is one.
pub(super) fn list_within(db: &Db, request: &List, mut left: Page) -> Result<ListReply> {
    let directory = inodes::directory(db, request.ino)?;
    check_within(db, &directory, request.within.as_ref())?;
    if request.limit > 0 {
        left.entries = left.entries.min(request.limit);
    }
    let found = entries_after(db, directory.ino, &request.after, left.entries + 1)?;
    let (all, mut entries) = (found.len(), Vec::new());
    for (name, inode) in found {
        if left.is_full() {
            break;
        }
        let entry = Dirent { name, attr: Some(inode.attr()) };
        left.take(&entry);
        entries.push(entry);
    }
    let more = entries.len() < all;
    Ok(ListReply { entries, more, lease_ms: 0 })
}

/// All names in a directory; `None` if there are more than `max`.
pub fn names(db: &Db, directory: u64, max: u32) -> Result<Option<Vec<Vec<u8>>>> {
    let names: Vec<Vec<u8>> =
        db.all("SELECT name FROM dentries WHERE parent = ?1 LIMIT ?2", args![directory, max + 1])?;
    Ok((names.len() <= max as usize).then_some(names))
}

/// All extended attributes of an inode, hints included.
pub fn list_xattrs(db: &Db, request: &ListXattrs) -> Result<ListXattrsReply> {
    let inode = inodes::get(db, request.ino)?;
    let mut found: Vec<(String, Vec<u8>)> =
        db.all("SELECT name, value FROM xattrs WHERE ino = ?1", args![inode.ino])?;
    let hints = HintSet::read(&inode.hints).hints.into_iter();
    found.extend(hints.map(|h| (format!("{}{}", tessera_policy::PREFIX, h.name), h.value.into_bytes())));
    found.sort();
    Ok(ListXattrsReply { xattrs: found.into_iter().map(|(name, value)| Xattr { name, value }).collect() })
}

/// The directory that gets a new name, and the inode that has the name already, if there is one.
fn new_name(ctx: &Ctx, parent: u64, name: &[u8]) -> Result<(Inode, Option<Inode>)> {
    let parent = inodes::directory(ctx.db, parent)?;
    let there = inodes::named(ctx.db, parent.ino, name)?;
    Ok((parent, there))
}

/// As [`new_name`], for a name that must be free.
fn free_name(ctx: &Ctx, parent: u64, name: &[u8]) -> Result<Inode> {
    match new_name(ctx, parent, name)? {
        (parent, None) => Ok(parent),
        _ => exists(name),
    }
}

/// Creates a directory.
pub fn make_dir(ctx: &mut Ctx, request: &MakeDir) -> Result<Entry> {
    check_name(&request.name)?;
    let (parent, there) = new_name(ctx, request.parent, &request.name)?;
    match there {
        Some(there) if request.exist_ok && there.is_directory() => return Ok(there.entry()),
        Some(_) if request.exist_ok => {
            let name = shown(&request.name);
            return refuse(Code::Exists, format!("{name} is in the way of a directory and is none"));
        }
        Some(_) => return exists(&request.name),
        None => {}
    }
    let mut inode = new_inode(ctx, InodeKind::Directory, &parent, request.mode, request.uid, request.gid);
    inode.parent = parent.ino;
    inode.nlink = inodes::EMPTY_DIRECTORY_LINKS;
    inode.insert(ctx.db)?;
    add_name(ctx, &parent, &request.name, inode.ino)?;
    inodes::count_subdirectories(ctx.db, parent.ino, 1)?;
    ctx.meta.directories += 1;
    Ok(Entry { inos: draw_inos(ctx, request.inos), ..inode.entry() })
}

/// Most inode numbers in one reply.
const MAX_INOS: u32 = 256;

/// Draws inode numbers for future files, if the request wants any.
pub(crate) fn draw_inos(ctx: &mut Ctx, wanted: u32) -> Option<InoRange> {
    let count = wanted.min(MAX_INOS);
    let first = ctx.meta.next_ino;
    assert!(first > inodes::ROOT, "the root's number is taken");
    ctx.meta.next_ino += u64::from(count);
    (count > 0).then_some(InoRange { first, count })
}

/// Rejects a number for a new inode that was never drawn or is in use (P14).
///
/// # Errors
/// `Invalid` if it was never drawn; `Exists` if it is in use.
pub(crate) fn check_drawn(ctx: &Ctx, ino: u64) -> Result<()> {
    if ino <= inodes::ROOT || ino >= ctx.meta.next_ino {
        return invalid(format!("inode number {ino} was never drawn; ask for numbers first"));
    }
    match inodes::find(ctx.db, ino)? {
        Some(_) => refuse(Code::Exists, format!("inode {ino} exists already")),
        None => Ok(()),
    }
}

/// Creates an empty file, or an inode without content: a pipe, a socket or a device.
pub fn make_node(ctx: &mut Ctx, request: &MakeNode) -> Result<Entry> {
    check_name(&request.name)?;
    let kind = request.kind();
    if matches!(kind, InodeKind::Unknown | InodeKind::Directory | InodeKind::Symlink) {
        return invalid(format!("MakeNode makes no inode of kind {}; there are MakeDir and Symlink", request.kind));
    }
    let (parent, there) = new_name(ctx, request.parent, &request.name)?;
    match there {
        Some(there) if request.exist_ok && there.is_file() && kind == InodeKind::File => return Ok(there.entry()),
        // Its number was drawn for this client, which has asked before and got no answer.
        Some(there) if request.ino == there.ino && there.kind == kind as i32 => return Ok(there.entry()),
        Some(_) => return exists(&request.name),
        None => {}
    }
    if request.ino != 0 {
        check_drawn(ctx, request.ino)?;
    }
    let mut inode = new_inode(ctx, kind, &parent, request.mode, request.uid, request.gid);
    if request.ino != 0 {
        inode.ino = request.ino;
    }
    inode.mtime_ns = ctx.or_now(request.mtime_ns);
    inode.ctime_ns = ctx.or_now(request.ctime_ns);
    inode.atime_ns = request.atime_ns;
    match kind {
        InodeKind::File => ctx.meta.files += 1,
        _ => inode.hints = Vec::new(),
    }
    if matches!(kind, InodeKind::CharDevice | InodeKind::BlockDevice) {
        inode.rdev = request.rdev;
    }
    inode.insert(ctx.db)?;
    add_name(ctx, &parent, &request.name, inode.ino)?;
    Ok(Entry { inos: draw_inos(ctx, request.inos), ..inode.entry() })
}

/// Creates a symbolic link.
pub fn symlink(ctx: &mut Ctx, request: &Symlink) -> Result<Entry> {
    check_name(&request.name)?;
    if request.target.is_empty() || request.target.len() > MAX_TARGET_BYTES || request.target.contains(&0) {
        return invalid(format!(
            "a symbolic link's target has 1 to {MAX_TARGET_BYTES} bytes and no NUL; this one has {} bytes",
            request.target.len()
        ));
    }
    let parent = free_name(ctx, request.parent, &request.name)?;
    let mut inode = new_inode(ctx, InodeKind::Symlink, &parent, 0o777, request.uid, request.gid);
    inode.symlink_target = Some(request.target.clone());
    inode.hints = Vec::new();
    inode.insert(ctx.db)?;
    add_name(ctx, &parent, &request.name, inode.ino)?;
    Ok(inode.entry())
}

/// Adds another name to a file or symbolic link.
pub fn link(ctx: &mut Ctx, request: &Link) -> Result<Entry> {
    check_name(&request.name)?;
    let mut inode = inodes::get(ctx.db, request.ino)?;
    if inode.is_directory() {
        return refuse(Code::IsDirectory, format!("inode {} is a directory; directories have one name", inode.ino));
    }
    if inode.nlink == 0 {
        return refuse(Code::NotFound, format!("inode {} has no name left and cannot get one again", inode.ino));
    }
    let parent = free_name(ctx, request.parent, &request.name)?;
    inode.nlink += 1;
    inode.ctime_ns = ctx.wall_ns;
    inode.update(ctx.db)?;
    add_name(ctx, &parent, &request.name, inode.ino)?;
    Ok(inode.entry())
}

/// Removes a name. Returns the inode as it is afterwards; its `ctime_ns` is also the directory's new modification time.
pub fn unlink(ctx: &mut Ctx, request: &Unlink) -> Result<Entry> {
    check_name(&request.name)?;
    let parent = inodes::directory(ctx.db, request.parent)?;
    let inode = child(ctx.db, &parent, &request.name)?;
    let name = shown(&request.name);
    match (request.directory, inode.is_directory()) {
        (false, true) => return refuse(Code::IsDirectory, format!("{name} is a directory; remove it as one")),
        (true, false) => return refuse(Code::NotDirectory, format!("{name} is not a directory")),
        _ => {}
    }
    let links = if inode.is_directory() { 0 } else { inode.nlink.saturating_sub(1) };
    let left = Inode { nlink: links, ctime_ns: ctx.wall_ns, ..inode.clone() };
    take_name(ctx, &parent, &request.name, inode)?;
    inodes::touch(ctx.db, parent.ino, ctx.wall_ns)?;
    Ok(left.entry())
}

/// Removes names of one directory. A refusal of one changes nothing, and the others go.
pub fn remove_names(ctx: &mut Ctx, request: &RemoveNames) -> Result<RemoveNamesReply> {
    if request.names.len() > MAX_REMOVED_NAMES {
        let count = request.names.len();
        return invalid(format!("{count} names to remove; a request has at most {MAX_REMOVED_NAMES}"));
    }
    let parent = inodes::directory(ctx.db, request.parent)?;
    check_within(ctx.db, &parent, request.within.as_ref())?;
    let mut refused = Vec::new();
    for (index, name) in (0..).zip(&request.names) {
        let found = check_name(name).and_then(|()| child(ctx.db, &parent, name));
        if let Err(error) = refusal(found.and_then(|inode| take_name(ctx, &parent, name, inode)))? {
            refused.push(NotRemoved { index, error: Some(error) });
        }
    }
    if refused.len() < request.names.len() {
        inodes::touch(ctx.db, parent.ino, ctx.wall_ns)?;
    }
    Ok(RemoveNamesReply { refused })
}

/// Removes a name of an inode that may go. A refusal changes nothing.
fn take_name(ctx: &mut Ctx, parent: &Inode, name: &[u8], inode: Inode) -> Result<()> {
    check_removable(ctx, &inode, name)?;
    inodes::remove_name(ctx.db, parent.ino, name)?;
    drop_name(ctx, inode)
}

/// Moves a name and atomically replaces an existing target.
pub fn rename(ctx: &mut Ctx, request: &Rename) -> Result<Ack> {
    check_name(&request.from_name)?;
    check_name(&request.to_name)?;
    let from = inodes::directory(ctx.db, request.from_parent)?;
    let mut inode = child(ctx.db, &from, &request.from_name)?;
    let to = inodes::directory(ctx.db, request.to_parent)?;
    if inode.is_directory() {
        check_not_inside(ctx, &inode, &to)?;
    }
    if request.exchange {
        return exchange(ctx, request, inode, (&from, &to));
    }
    if let Some(there) = inodes::named(ctx.db, to.ino, &request.to_name)? {
        if request.no_replace {
            return exists(&request.to_name);
        }
        if there.ino == inode.ino {
            return Ok(Ack {}); // Two names of one file: POSIX rename does nothing.
        }
        let name = shown(&request.to_name);
        let refuse_kinds = |code, kinds: &str| refuse(code, format!("{name} is {kinds} cannot replace it"));
        match (inode.is_directory(), there.is_directory()) {
            (true, false) => return refuse_kinds(Code::NotDirectory, "a file; a directory"),
            (false, true) => return refuse_kinds(Code::IsDirectory, "a directory; a file"),
            _ => check_removable(ctx, &there, &request.to_name)?,
        }
        inodes::remove_name(ctx.db, to.ino, &request.to_name)?;
        drop_name(ctx, there)?;
    }
    inodes::remove_name(ctx.db, from.ino, &request.from_name)?;
    add_name(ctx, &to, &request.to_name, inode.ino)?;
    if from.ino != to.ino {
        inodes::touch(ctx.db, from.ino, ctx.wall_ns)?;
    }
    inode.ctime_ns = ctx.wall_ns;
    place(ctx, inode, to.ino)?;
    Ok(Ack {})
}

/// Writes an inode whose name has moved. A directory gets its new parent, and adds to that parent's links.
fn place(ctx: &Ctx, mut inode: Inode, parent: u64) -> Result<()> {
    if inode.is_directory() && inode.parent != parent {
        inodes::count_subdirectories(ctx.db, inode.parent, -1)?;
        inodes::count_subdirectories(ctx.db, parent, 1)?;
        inode.parent = parent;
    }
    // The statements above may have changed this inode's own link count.
    inode.nlink = inodes::get(ctx.db, inode.ino)?.nlink;
    inode.update(ctx.db)?;
    Ok(())
}

/// Exchanges two names of any kind.
fn exchange(ctx: &mut Ctx, request: &Rename, mut one: Inode, (from, to): (&Inode, &Inode)) -> Result<Ack> {
    let mut other = child(ctx.db, to, &request.to_name)?;
    if request.no_replace {
        return invalid("a rename either exchanges or replaces nothing, not both");
    }
    if other.is_directory() {
        check_not_inside(ctx, &other, from)?;
    }
    if (from.ino, &request.from_name) == (to.ino, &request.to_name) {
        return Ok(Ack {});
    }
    inodes::remove_name(ctx.db, from.ino, &request.from_name)?;
    inodes::remove_name(ctx.db, to.ino, &request.to_name)?;
    add_name(ctx, to, &request.to_name, one.ino)?;
    add_name(ctx, from, &request.from_name, other.ino)?;
    (one.ctime_ns, other.ctime_ns) = (ctx.wall_ns, ctx.wall_ns);
    place(ctx, one, to.ino)?;
    place(ctx, other, from.ino)?;
    Ok(Ack {})
}

/// Checks that a directory does not become its own descendant.
fn check_not_inside(ctx: &Ctx, moved: &Inode, target: &Inode) -> Result<()> {
    let mut at = target.ino;
    while at != inodes::ROOT {
        if at == moved.ino {
            return invalid("a directory cannot be moved into itself or below".to_string());
        }
        at = inodes::get(ctx.db, at)?.parent;
    }
    Ok(())
}

/// Checks that a directory is in the subtree that the request names, if it names one.
fn check_within(db: &Db, directory: &Inode, within: Option<&Subtree>) -> Result<()> {
    let Some(Subtree { components }) = within else { return Ok(()) };
    check_length(components)?;
    let outside = |what: String| refuse(Code::VersionConflict, format!("{what}; what is left in it stays"));
    let mut top = inodes::ROOT;
    for name in components {
        match inodes::lookup(db, top, name)? {
            Some(ino) => top = ino,
            None => return outside(format!("directory {} was moved or removed meanwhile", shown(name))),
        }
    }
    let (mut at, mut above) = (directory.ino, directory.parent);
    while at != top {
        if at == inodes::ROOT {
            let name = components.last().map_or("/".into(), |name| shown(name));
            return outside(format!("the directory was moved out of {name}, or that was replaced, meanwhile"));
        }
        (at, above) = (above, inodes::get(db, above)?.parent);
    }
    Ok(())
}

fn check_removable(ctx: &Ctx, inode: &Inode, name: &[u8]) -> Result<()> {
    if !inode.is_directory() {
        return Ok(());
    }
    match ctx.db.any("SELECT 1 FROM dentries WHERE parent = ?1 LIMIT 1", args![inode.ino])? {
        true => refuse(Code::NotEmpty, format!("directory {} has entries", shown(name))),
        false => Ok(()),
    }
}

/// Removes one name of an inode. Directories and symbolic links go at once, files when no session has them open.
pub(crate) fn drop_name(ctx: &mut Ctx, mut inode: Inode) -> Result<()> {
    if inode.is_directory() {
        uncount(&mut ctx.meta.directories, 1, "directories")?;
        inodes::count_subdirectories(ctx.db, inode.parent, -1)?;
        return Ok(inodes::remove(ctx.db, inode.ino)?);
    }
    let Some(links) = inode.nlink.checked_sub(1) else {
        return Err(corrupt_row(format!("inodes, row {}", inode.ino), "it has a name and no link").into());
    };
    (inode.nlink, inode.ctime_ns) = (links, ctx.wall_ns);
    if links == 0 && !inode.is_file() {
        return Ok(inodes::remove(ctx.db, inode.ino)?);
    }
    if links == 0 {
        uncount(&mut ctx.meta.files, 1, "files")?;
        ctx.orphans.push(inode.ino);
    }
    Ok(inode.update(ctx.db)?)
}

/// Changes mode, owner, times.
pub fn set_attr(ctx: &mut Ctx, request: &SetAttr) -> Result<Entry> {
    let mut inode = inodes::get(ctx.db, request.ino)?;
    if let Some(mode) = request.mode {
        if mode & !MODE_BITS != 0 {
            return invalid(format!("mode {mode:#o} has bits beyond {MODE_BITS:#o}"));
        }
        inode.mode = mode;
    }
    inode.uid = request.uid.unwrap_or(inode.uid);
    inode.gid = request.gid.unwrap_or(inode.gid);
    inode.mtime_ns = request.mtime_ns.unwrap_or(inode.mtime_ns);
    inode.atime_ns = request.atime_ns.unwrap_or(inode.atime_ns);
    inode.ctime_ns = request.ctime_ns.unwrap_or(ctx.wall_ns);
    inode.update(ctx.db)?;
    Ok(inode.entry())
}

/// Sets an extended attribute; hints are validated and kept in canonical form.
pub fn set_xattr(ctx: &mut Ctx, request: &SetXattr) -> Result<Ack> {
    let mut inode = inodes::get(ctx.db, request.ino)?;
    check_xattr(&request.name)?;
    if request.value.len() > MAX_XATTR_BYTES {
        let (name, len) = (&request.name, request.value.len());
        return invalid(format!("attribute {name:?}: {len} bytes of value, at most {MAX_XATTR_BYTES} are possible"));
    }
    if let Some(hint) = hint_of_attribute(&request.name) {
        let Ok(value) = std::str::from_utf8(&request.value) else {
            return invalid(format!("hint {hint}: the value is not UTF-8"));
        };
        let mut hints = HintSet::read(&inode.hints);
        check_presence(request, hints.get(hint).is_some())?;
        // A classic name has its own set of values.
        let name = request.name.strip_prefix(tessera_policy::PREFIX).or_else(|| request.name.strip_prefix("user."));
        hints.set(name.unwrap_or(hint), value)?;
        inode.hints = hints.column();
        ctx.hints_changed.push(inode.ino);
    } else {
        let sql = "SELECT 1 FROM xattrs WHERE ino = ?1 AND name = ?2";
        let there = ctx.db.any(sql, args![inode.ino, request.name])?;
        check_presence(request, there)?;
        check_xattr_room(ctx, request)?;
        inodes::set_xattr(ctx.db, inode.ino, &request.name, &request.value)?;
    }
    inode.ctime_ns = ctx.wall_ns;
    inode.update(ctx.db)?;
    Ok(Ack {})
}

/// Refuses an attribute with which those of its inode would be too long for one reply.
fn check_xattr_room(ctx: &Ctx, request: &SetXattr) -> Result<()> {
    let sql =
        "SELECT coalesce(sum(length(CAST(name AS BLOB)) + length(value)), 0) FROM xattrs WHERE ino = ?1 AND name <> ?2";
    let others_bytes: u64 = ctx.db.first(sql, args![request.ino, request.name])?.unwrap_or(0);
    match others_bytes + (request.name.len() + request.value.len()) as u64 <= MAX_XATTRS_BYTES {
        true => Ok(()),
        false => {
            let text = format!(
                "inode {} has {others_bytes} bytes of attributes, at most {MAX_XATTRS_BYTES} are possible; remove some",
                request.ino
            );
            refuse(Code::NoSpace, text)
        }
    }
}

/// Removes an extended attribute.
pub fn remove_xattr(ctx: &mut Ctx, request: &RemoveXattr) -> Result<Ack> {
    let mut inode = inodes::get(ctx.db, request.ino)?;
    let removed = match hint_of_attribute(&request.name) {
        Some(hint) => {
            let mut hints = HintSet::read(&inode.hints);
            let removed = hints.remove(hint);
            inode.hints = hints.column();
            ctx.hints_changed.push(inode.ino);
            removed
        }
        None => inodes::remove_xattr(ctx.db, inode.ino, &request.name)?,
    };
    if !removed {
        return refuse(Code::NotFound, format!("inode {} has no attribute {:?}", inode.ino, request.name));
    }
    inode.ctime_ns = ctx.wall_ns;
    inode.update(ctx.db)?;
    Ok(Ack {})
}

fn check_xattr(name: &str) -> Result<()> {
    let (len, most) = (name.len(), MAX_NAME_BYTES_XATTR);
    match (1..=most).contains(&len) && !name.contains('\0') {
        true => Ok(()),
        false => invalid(format!("attribute name of {len} bytes; names have 1 to {most} bytes and no NUL")),
    }
}

/// Longest name of an extended attribute, bytes (as in Linux).
const MAX_NAME_BYTES_XATTR: usize = 255;

fn check_presence(request: &SetXattr, there: bool) -> Result<()> {
    match (request.create_only && there, request.replace_only && !there) {
        (true, _) => refuse(Code::Exists, format!("attribute {:?} exists already", request.name)),
        (_, true) => refuse(Code::NotFound, format!("there is no attribute {:?} to replace", request.name)),
        _ => Ok(()),
    }
}

/// A new inode in `parent`, not yet written. It inherits the parent's hints.
pub(crate) fn new_inode(ctx: &mut Ctx, kind: InodeKind, parent: &Inode, mode: u32, uid: u32, gid: u32) -> Inode {
    Inode {
        ino: draw(&mut ctx.meta.next_ino),
        kind: kind as i32,
        mode: mode & MODE_BITS,
        uid,
        gid,
        nlink: 1,
        domain: parent.domain,
        mtime_ns: ctx.wall_ns,
        ctime_ns: ctx.wall_ns,
        hints: parent.hints.clone(),
        ..Default::default()
    }
}

/// Adds a name to a directory and updates the directory's times.
pub(crate) fn add_name(ctx: &mut Ctx, parent: &Inode, name: &[u8], ino: u64) -> Result<()> {
    inodes::add_name(ctx.db, parent.ino, name, ino)?;
    inodes::touch(ctx.db, parent.ino, ctx.wall_ns)?;
    Ok(())
}

fn exists<T>(name: &[u8]) -> Result<T> {
    refuse(Code::Exists, format!("{} exists already", shown(name)))
}

/// A name as messages show it.
fn shown(name: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(name))
}
