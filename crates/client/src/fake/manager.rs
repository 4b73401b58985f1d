//! The fake's manager.

use super::*;
use prost::Message;
use tessera_stripe::ClassLayout;
use tessera_wire::meta::*;
use tessera_wire::{Ack, Attr, ChunkInfo, Code, Extent, Hint, InodeKind};

fn error(code: Code, message: &str) -> Error {
    Error::new(code, message)
}

impl Fake {
    pub(super) fn manager_call(&mut self, call: &Call) -> Result<(Bytes, Bytes), Error> {
        let lost = self.lose_answers.get_mut(&call.kind).filter(|n| **n > 0);
        let lose = lost.map(|n| *n -= 1).is_some();
        let answer = self.answer(call);
        if lose {
            return Err(error(Code::Unavailable, "the answer was lost"));
        }
        answer.map(|body| (body, Bytes::new()))
    }

    fn answer(&mut self, call: &Call) -> Result<Bytes, Error> {
        macro_rules! dispatch {
            (once { $($once:ident => $once_fn:ident,)* } pure { $($pure:ident => $pure_fn:ident,)* }) => {
                match call.kind {
                    $(Kind::$once => {
                        let request = $once::decode(&call.body[..]).unwrap();
                        assert_ne!(request.op_id, 0);
                        // P8: a repeated op id gets the same answer and has one effect.
                        if let Some(known) = self.ops.get(&request.op_id) {
                            return known.clone();
                        }
                        let op_id = request.op_id;
                        let answer = self.$once_fn(request).map(|reply| Bytes::from(reply.encode_to_vec()));
                        self.ops.insert(op_id, answer.clone());
                        answer
                    })*
                    $(Kind::$pure => {
                        let request = $pure::decode(&call.body[..]).unwrap();
                        self.$pure_fn(request).map(|reply| reply.encode_to_vec().into())
                    })*
                    kind => panic!("the fake manager does not know {kind:?}"),
                }
            };
        }
        dispatch! {
            once {
            OpenWrite => open_write,
            AllocateChunks => allocate,
            Commit => commit,
            CompleteFragments => complete,
            MakeDir => make_dir,
            Unlink => unlink,
            Rename => rename,
            SetXattr => set_xattr,
            }
            pure {
            GetMap => get_map,
            RenewSession => renew,
            CloseSession => close_session,
            OpenRead => open_read,
            ListExtents => list_extents,
            ReportBad => report_bad,
            Resolve => resolve,
            List => list,
            ListXattrs => list_xattrs,
            ListVersions => list_versions,
            }
        }
    }

    fn get_map(&mut self, request: GetMap) -> Result<ClusterMap, Error> {
        let mut map = self.map();
        if !request.pg_ids.is_empty() {
            map.pgs.retain(|pg| request.pg_ids.contains(&pg.pg_id));
        }
        Ok(map)
    }

    fn hints(&self) -> Vec<Hint> {
        let mut policy = tessera_policy::Policy::default();
        self.policy.iter().for_each(|(name, value)| policy.set(name, value).unwrap());
        policy.to_hints().into_iter().map(|(name, value)| Hint { name: name.into(), value }).collect()
    }

    fn open_write(&mut self, request: OpenWrite) -> Result<OpenWriteReply, Error> {
        let ino = match request.parent {
            0 => request.ino,
            parent => self.names.get(&(parent, request.name.clone())).copied().unwrap_or(0),
        };
        let session_id = self.id();
        let session = Session {
            parent: request.parent,
            name: request.name,
            ino,
            reserved_bytes: request.size_hint_bytes,
            ..Default::default()
        };
        self.sessions.insert(session_id, session);
        let base = self.files.get(&ino).map(|f| f.attr.clone()).unwrap_or_default();
        let allocated = match request.chunks.is_empty() {
            true => None,
            false => Some(self.allocate_all(&request.redundancy, &request.chunks, &[])?),
        };
        Ok(OpenWriteReply {
            session_id,
            ino,
            base_version: base.version,
            base_size_bytes: base.size_bytes,
            policy: self.hints(),
            session_ms: 30_000,
            domain: 7,
            allocated,
            preallocated: self.draw(&request.redundancy, request.preallocate)?,
        })
    }

    fn draw(&mut self, spec: &str, count: u32) -> Result<Option<PreallocatedChunks>, Error> {
        if count == 0 {
            return Ok(None);
        }
        let session_id = self.id();
        self.sessions.insert(session_id, Session::default());
        let class = self.class_of(spec);
        let mut chunks = Vec::new();
        for _ in 0..count {
            chunks.push(self.allocate_one(&class, &ChunkName::default(), &[])?);
        }
        let (class, map) = (Some(class), Some(self.map()));
        Ok(Some(PreallocatedChunks { session_id, session_ms: 30_000, chunks, class, domain: 7, map }))
    }

    /// Assigns content to preallocated chunks, and opens the file.
    fn fill(&mut self, request: &mut Commit, open: OpenWrite) -> Result<Vec<u64>, Error> {
        if !request.preallocated_ids.is_empty() {
            self.session(request.session_id)?;
        }
        let hints = self.hints();
        let policy = tessera_policy::Policy::from_hints(hints.iter().map(|h| (h.name.as_str(), h.value.as_str())));
        let policy = policy.unwrap();
        if policy.scheme(request.size_bytes).to_string() != open.redundancy {
            return Err(error(Code::SessionExpired, "another class than the policy asks for"));
        }
        if policy.placement != tessera_policy::Placement::Spread || policy.chunking.to_string() != open.chunking {
            return Err(error(Code::SessionExpired, "other chunks or places than the policy asks for"));
        }
        let class = self.class_of(&open.redundancy);
        let mut known = Vec::new();
        for (id, name) in request.preallocated_ids.clone().into_iter().zip(&open.chunks) {
            let there = |c: &FakeChunk| {
                (c.class_id, &c.hash, c.committed && c.missing.is_empty()) == (class.class_id, &name.hash, true)
            };
            if let Some((&chunk_id, _)) = self.chunks.iter().find(|(_, c)| there(c)) {
                known.push(id);
                request.acks.retain(|ack| ack.chunk_id != id);
                request.extents.iter_mut().filter(|e| e.chunk_id == id).for_each(|e| e.chunk_id = chunk_id);
                continue;
            }
            let chunk = |c: &&mut FakeChunk| c.hash.is_empty() && c.class_id == class.class_id;
            let gone = || error(Code::SessionExpired, "no such chunk");
            let chunk = self.chunks.get_mut(&id).filter(chunk).ok_or_else(gone)?;
            (chunk.hash, chunk.len_bytes) = (name.hash.clone(), name.len_bytes);
        }
        request.session_id = self.open_write(OpenWrite { chunks: Vec::new(), preallocate: 0, ..open })?.session_id;
        Ok(known)
    }

    fn allocate(&mut self, request: AllocateChunks) -> Result<AllocateChunksReply, Error> {
        self.session(request.session_id)?;
        self.allocate_all(&request.redundancy, &request.chunks, &request.avoid_pgs)
    }

    fn session(&mut self, id: u64) -> Result<&mut Session, Error> {
        self.sessions.get_mut(&id).ok_or_else(|| error(Code::SessionExpired, "no such session"))
    }

    fn allocate_all(&mut self, spec: &str, names: &[ChunkName], avoid: &[u64]) -> Result<AllocateChunksReply, Error> {
        let class = self.class_of(spec);
        let mut answers = Vec::new();
        for name in names {
            answers.push(self.allocate_one(&class, name, avoid)?);
        }
        Ok(AllocateChunksReply { answers, class: Some(class), map: Some(self.map()) })
    }

    fn allocate_one(&mut self, class: &ClassInfo, name: &ChunkName, avoid: &[u64]) -> Result<ChunkAnswer, Error> {
        let same = |c: &FakeChunk| {
            !c.hash.is_empty()
                && c.class_id == class.class_id
                && c.hash == name.hash
                && c.len_bytes == name.len_bytes
                && !avoid.contains(&c.pg_id)
        };
        if let Some((&chunk_id, chunk)) = self.chunks.iter().find(|(_, c)| same(c)) {
            let missing: Vec<u32> = match chunk.committed {
                true => chunk.missing.iter().copied().collect(),
                false => (0..class.fragments()).collect(),
            };
            let state = if missing.is_empty() { ChunkState::Durable } else { ChunkState::Incomplete } as i32;
            let epoch = self.pgs[&chunk.pg_id].epoch;
            return Ok(ChunkAnswer { state, chunk_id, pg_id: chunk.pg_id, epoch, missing });
        }
        let pg_id = self.choose_pg(class, avoid)?;
        let chunk_id = self.id();
        let chunk = FakeChunk {
            hash: name.hash.clone(),
            len_bytes: name.len_bytes,
            class_id: class.class_id,
            pg_id,
            committed: false,
            missing: BTreeSet::new(),
        };
        self.chunks.insert(chunk_id, chunk);
        let epoch = self.pgs[&pg_id].epoch;
        Ok(ChunkAnswer { state: ChunkState::New as i32, chunk_id, pg_id, epoch, missing: Vec::new() })
    }

    /// Groups of a width are made when first needed: one for each rotation of the nodes.
    fn choose_pg(&mut self, class: &ClassInfo, avoid: &[u64]) -> Result<u64, Error> {
        let width = class.fragments() as usize;
        let disks: Vec<u64> = self.nodes.values().map(|n| n.disk_id).collect();
        if disks.len() < width {
            let text = format!("{} needs {width} hosts, there are {}; start more nodes", class.spec, disks.len());
            return Err(error(Code::TooFewHosts, &text));
        }
        if !self.pgs.values().any(|pg| pg.members.len() == width) {
            for first in 0..disks.len() {
                let member =
                    |i| PgMember { disk_id: disks[(first + i) % disks.len()], since_epoch: 1, ..Default::default() };
                let pg_id = self.id();
                self.pgs.insert(pg_id, PgInfo { pg_id, epoch: 1, members: (0..width).map(member).collect() });
            }
            self.map_version += 1;
        }
        let down: Vec<u64> = self.nodes.values().filter(|n| n.info.health() != Health::Up).map(|n| n.disk_id).collect();
        let usable = |pg: &&PgInfo| {
            pg.members.len() == width
                && !avoid.contains(&pg.pg_id)
                && pg.members.iter().all(|m| !down.contains(&m.put_disk_id()))
        };
        let open: Vec<u64> = self.pgs.values().filter(usable).map(|pg| pg.pg_id).collect();
        let turn = self.next_id as usize;
        open.get(turn % open.len().max(1)).copied().ok_or_else(|| error(Code::TooFewHosts, "no group left"))
    }

    fn renew(&mut self, request: RenewSession) -> Result<RenewSessionReply, Error> {
        let session = self.session(request.session_id)?;
        session.reserved_bytes = session.reserved_bytes.max(request.reserve_bytes);
        Ok(RenewSessionReply { session_ms: 30_000, reserved_bytes: session.reserved_bytes })
    }

    fn close_session(&mut self, request: CloseSession) -> Result<Ack, Error> {
        self.sessions.remove(&request.session_id);
        Ok(Ack {})
    }

    fn commit(&mut self, mut request: Commit) -> Result<CommitReply, Error> {
        let Some(open) = request.open.take() else { return self.commit_opened(request) };
        let (spec, wanted) = (open.redundancy.clone(), open.preallocate);
        let known = self.fill(&mut request, *open)?;
        let session_id = request.session_id;
        let reply = self.commit_opened(request)?;
        self.sessions.remove(&session_id);
        match reply.stale.is_empty() {
            true => Ok(CommitReply { known, preallocated: self.draw(&spec, wanted)?, ..reply }),
            false => Ok(reply),
        }
    }

    fn commit_opened(&mut self, request: Commit) -> Result<CommitReply, Error> {
        let session = self.session(request.session_id)?;
        let mut acks = session.acks.clone();
        acks.extend(request.acks.iter().map(|ack| (ack.chunk_id, ack.clone())));
        let stale = self.stale(&acks);
        if !stale.is_empty() {
            return Ok(CommitReply { stale, map: Some(self.map()), ..Default::default() });
        }
        let session = self.session(request.session_id)?;
        session.acks = acks;
        session.staged.extend(request.extents.iter().cloned());
        if request.partial {
            return Ok(CommitReply::default());
        }
        let extents = std::mem::take(&mut session.staged);
        let acks = std::mem::take(&mut session.acks);
        let (parent, name, mut ino) = (session.parent, session.name.clone(), session.ino);
        if ino == 0 {
            ino = self.names.get(&(parent, name.clone())).copied().unwrap_or(0);
        }
        let current = self.files.get(&ino).map_or(0, |f| f.attr.version);
        if request.if_version.is_some_and(|expected| expected != current) {
            let mut conflict = error(Code::VersionConflict, "another version is current");
            conflict.current = current;
            return Err(conflict);
        }
        self.check_extents(&extents, &acks)?;
        if ino == 0 {
            ino = self.id();
            self.names.insert((parent, name), ino);
        }
        let missing: u64 = acks.values().map(|a| a.missing.len() as u64).sum();
        for ack in acks.into_values() {
            let chunk = self.chunks.get_mut(&ack.chunk_id).unwrap();
            chunk.committed = true;
            chunk.missing = ack.missing.into_iter().collect();
        }
        let version = self.id();
        let reply = self.add_version(ino, version, &request, extents);
        match request.keep_session {
            true => self.session(request.session_id)?.ino = ino,
            false => drop(self.sessions.remove(&request.session_id)),
        }
        Ok(CommitReply { missing_fragments: missing, ..reply })
    }

    fn stale(&self, acks: &BTreeMap<u64, ChunkAck>) -> Vec<StaleAck> {
        let stale = acks.values().filter_map(|ack| {
            let pg = &self.pgs[&self.chunks[&ack.chunk_id].pg_id];
            let outdated = |(i, m): (usize, &PgMember)| {
                (!m.accepts(ack.epoch) && !ack.missing.contains(&(i as u32))).then_some(i as u32)
            };
            let fragments: Vec<u32> = pg.members.iter().enumerate().filter_map(outdated).collect();
            let found = StaleAck { chunk_id: ack.chunk_id, pg_id: pg.pg_id, epoch: pg.epoch, fragments };
            (!found.fragments.is_empty()).then_some(found)
        });
        stale.collect()
    }

    /// Checks that chunks are durable or acknowledged as the policy asks, and that acknowledged fragments exist.
    fn check_extents(&mut self, extents: &[Extent], acks: &BTreeMap<u64, ChunkAck>) -> Result<(), Error> {
        let optimistic = self.policy.iter().any(|(_, v)| v == "optimistic");
        let degraded = self.policy.iter().any(|(n, v)| n == "degraded-writes" && v == "yes");
        for extent in extents.iter().filter(|e| e.chunk_id != 0) {
            let chunk = &self.chunks[&extent.chunk_id];
            let class = &self.classes[&chunk.class_id];
            let enough = |missing: &[u32]| match (optimistic, degraded) {
                (true, _) => class.suffices_without(|fragment| missing.contains(&fragment)),
                (_, true) => class.is_redundant(class.fragments() - missing.len() as u32),
                _ => missing.is_empty(),
            };
            match acks.get(&extent.chunk_id) {
                Some(ack) if enough(&ack.missing) => {}
                Some(_) => return Err(error(Code::Invalid, "too few acknowledgements")),
                None if chunk.committed && chunk.missing.is_empty() => continue,
                None => return Err(error(Code::Invalid, "a chunk was not acknowledged")),
            }
            let missing = acks[&extent.chunk_id].missing.clone();
            for number in (0..class.fragments()).filter(|n| !missing.contains(n)).collect::<Vec<_>>() {
                let there = self.fragment(extent.chunk_id, number).is_some();
                assert!(there, "chunk {} fragment {number} was acknowledged and is not there", extent.chunk_id);
            }
        }
        Ok(())
    }

    fn add_version(&mut self, ino: u64, version: u64, request: &Commit, extents: Vec<Extent>) -> CommitReply {
        let file = self.files.entry(ino).or_default();
        let base = file.versions.last().map(|(_, e)| e.clone()).unwrap_or_default();
        let base_size = file.attr.size_bytes;
        let (extents, size) = match request.mode() {
            CommitMode::Replace => (extents, request.size_bytes),
            CommitMode::Patch => (overlay(base, extents, request.size_bytes), request.size_bytes),
            CommitMode::Append => {
                let moved = extents.into_iter().map(|e| Extent { offset: e.offset + base_size, ..e });
                (base.into_iter().chain(moved).collect(), base_size + request.size_bytes)
            }
            CommitMode::Unknown => panic!("no mode"),
        };
        let mut at = 0;
        for extent in &extents {
            assert_eq!(extent.offset, at, "gap or overlap in {extents:?}");
            at += extent.len_bytes;
        }
        assert_eq!(at, size);
        let number = file.versions.len() as u64 + 1;
        let info = VersionInfo { version, number, size_bytes: size, ..Default::default() };
        file.versions.push((info, extents));
        let kind = InodeKind::File as i32;
        file.attr = Attr { ino, kind, size_bytes: size, version, version_number: number, ..Default::default() };
        CommitReply { ino, version, number, append_offset: base_size, ..Default::default() }
    }

    fn complete(&mut self, request: CompleteFragments) -> Result<Ack, Error> {
        for fragment in &request.fragments {
            let chunk = self.chunks.get_mut(&fragment.chunk_id).unwrap();
            assert!(chunk.missing.remove(&fragment.fragment), "{fragment:?} was not missing");
        }
        self.completed.extend(request.fragments);
        Ok(Ack {})
    }

    fn open_read(&mut self, request: OpenRead) -> Result<OpenReadReply, Error> {
        let not_found = || error(Code::NotFound, "no such file or version");
        let ino = match request.parent {
            0 => request.ino,
            parent => *self.names.get(&(parent, request.name)).ok_or_else(not_found)?,
        };
        let file = self.files.get(&ino).ok_or_else(not_found)?;
        let attr = file.attr.clone();
        let wanted = |v: &VersionInfo| match (request.version, request.number) {
            (0, 0) => v.version == attr.version,
            (0, number) => v.number == number,
            (version, _) => v.version == version,
        };
        let version = *file.versions.iter().map(|(v, _)| v).find(|v| wanted(v)).ok_or_else(not_found)?;
        let session_id = self.id();
        let session = Session { ino, version: version.version, ..Default::default() };
        self.sessions.insert(session_id, session);
        let extents = self.extents(ino, version.version, request.offset, request.len_bytes);
        let (attr, version, extents) = (Some(attr), Some(version), Some(extents));
        Ok(OpenReadReply { session_id, attr, version, extents, session_ms: 30_000, policy: self.hints() })
    }

    fn list_extents(&mut self, request: ListExtents) -> Result<ListExtentsReply, Error> {
        let session = self.session(request.session_id)?;
        let (ino, version) = (session.ino, session.version);
        Ok(self.extents(ino, version, request.offset, request.len_bytes))
    }

    fn extents(&self, ino: u64, version: u64, offset: u64, len: u64) -> ListExtentsReply {
        let (_, all) = self.files[&ino].versions.iter().find(|(v, _)| v.version == version).unwrap();
        let end = offset.saturating_add(len.max(1));
        let inside = |e: &&Extent| e.offset + e.len_bytes > offset && e.offset < end;
        let extents: Vec<Extent> = all.iter().filter(inside).take(self.page).cloned().collect();
        let ids: BTreeSet<u64> = extents.iter().map(|e| e.chunk_id).filter(|id| *id != 0).collect();
        let chunk = |chunk_id: u64| {
            let c = &self.chunks[&chunk_id];
            let missing = c.missing.iter().copied().collect();
            let (hash, len_bytes, class_id, pg_id) = (c.hash.clone(), c.len_bytes, c.class_id, c.pg_id);
            ChunkInfo { chunk_id, hash, len_bytes, class_id, pg_id, missing }
        };
        let next_offset = extents.last().map_or(offset, |e| e.offset + e.len_bytes);
        ListExtentsReply {
            extents,
            chunks: ids.into_iter().map(chunk).collect(),
            classes: self.classes.values().cloned().collect(),
            map: Some(self.map()),
            next_offset,
        }
    }

    fn report_bad(&mut self, request: ReportBad) -> Result<Ack, Error> {
        self.reports.extend(request.fragments);
        Ok(Ack {})
    }

    fn entry(&self, ino: u64) -> Entry {
        let hints = self.hints();
        Entry { attr: Some(self.files[&ino].attr.clone()), hints, lease_ms: 10_000, ..Entry::default() }
    }

    fn resolve(&mut self, request: Resolve) -> Result<Entry, Error> {
        let mut ino = request.start.max(1);
        let mut path = vec![ino];
        for name in request.components {
            ino = *self.names.get(&(ino, name)).ok_or_else(|| error(Code::NotFound, "no such name"))?;
            path.push(ino);
        }
        path.pop();
        Ok(Entry { path, ..self.entry(ino) })
    }

    fn make_dir(&mut self, request: MakeDir) -> Result<Entry, Error> {
        let key = (request.parent, request.name);
        if let Some(&ino) = self.names.get(&key) {
            return if request.exist_ok { Ok(self.entry(ino)) } else { Err(error(Code::Exists, "the name is taken")) };
        }
        let ino = self.id();
        let kind = InodeKind::Directory as i32;
        self.files.insert(ino, File { attr: Attr { ino, kind, ..Default::default() }, ..Default::default() });
        self.names.insert(key, ino);
        Ok(self.entry(ino))
    }

    fn list(&mut self, request: List) -> Result<ListReply, Error> {
        let inside = |((parent, name), _): &(&(u64, Vec<u8>), &u64)| *parent == request.ino && *name > request.after;
        let all = self.names.iter().filter(inside);
        let entry = |((_, name), ino): (&(u64, Vec<u8>), &u64)| Dirent {
            name: name.clone(),
            attr: Some(self.files[ino].attr.clone()),
        };
        let mut entries: Vec<Dirent> = all.map(entry).take(3).collect();
        let more = entries.len() == 3;
        entries.truncate(2);
        Ok(ListReply { entries, more })
    }

    fn unlink(&mut self, request: Unlink) -> Result<Entry, Error> {
        let key = (request.parent, request.name);
        let ino = *self.names.get(&key).ok_or_else(|| error(Code::NotFound, "no such name"))?;
        if self.names.keys().any(|(parent, _)| *parent == ino) {
            return Err(error(Code::NotEmpty, "the directory has entries"));
        }
        self.names.remove(&key);
        Ok(Entry { attr: Some(Attr { ino, ..Attr::default() }), ..Entry::default() })
    }

    fn rename(&mut self, request: Rename) -> Result<Ack, Error> {
        let from = (request.from_parent, request.from_name);
        let ino = self.names.remove(&from).ok_or_else(|| error(Code::NotFound, "no such name"))?;
        self.names.insert((request.to_parent, request.to_name), ino);
        Ok(Ack {})
    }

    fn set_xattr(&mut self, request: SetXattr) -> Result<Ack, Error> {
        self.files.get_mut(&request.ino).unwrap().xattrs.insert(request.name, request.value);
        Ok(Ack {})
    }

    fn list_xattrs(&mut self, request: ListXattrs) -> Result<ListXattrsReply, Error> {
        let xattrs = self.files[&request.ino].xattrs.iter();
        let xattrs = xattrs.map(|(name, value)| Xattr { name: name.clone(), value: value.clone() }).collect();
        Ok(ListXattrsReply { xattrs })
    }

    fn list_versions(&mut self, request: ListVersions) -> Result<ListVersionsReply, Error> {
        let versions = self.files[&request.ino].versions.iter().map(|(v, _)| *v).collect();
        Ok(ListVersionsReply { versions })
    }
}

/// `patch` laid over `base`, to `size` bytes.
fn overlay(base: Vec<Extent>, patch: Vec<Extent>, size: u64) -> Vec<Extent> {
    let mut out: BTreeMap<u64, Extent> = BTreeMap::new();
    let mut rest = base;
    for p in &patch {
        let p_end = p.offset + p.len_bytes;
        let split = rest.into_iter().flat_map(|e| {
            let end = e.offset + e.len_bytes;
            let left = (e.offset < p.offset).then(|| Extent { len_bytes: end.min(p.offset) - e.offset, ..e });
            let right = (end > p_end).then(|| {
                let start = e.offset.max(p_end);
                let chunk_offset = e.chunk_offset + (start - e.offset);
                Extent { offset: start, len_bytes: end - start, chunk_offset, ..e }
            });
            [left, right].into_iter().flatten()
        });
        rest = split.collect();
    }
    for extent in rest.into_iter().chain(patch).filter(|e| e.offset < size) {
        let len_bytes = extent.len_bytes.min(size - extent.offset);
        out.insert(extent.offset, Extent { len_bytes, ..extent });
    }
    let mut at = 0;
    let mut filled = Vec::new();
    let hole = |offset, end: u64| Extent { offset, len_bytes: end - offset, chunk_id: 0, chunk_offset: 0 };
    for extent in out.into_values() {
        if extent.offset > at {
            filled.push(hole(at, extent.offset));
        }
        at = extent.offset + extent.len_bytes;
        filled.push(extent);
    }
    if at < size {
        filled.push(hole(at, size));
    }
    filled
}
