//! Small reads: fetch only the 16 KiB groups that hold the bytes, and verify them by the chunk's tree (P2).
//!
//! A small read first requests the range of a copy, or the ranges of the slices that hold the groups. If one is missing
//! or late, it requests the same positions of k other fragments, since codes work position by position, or stripe by
//! stripe. After any further trouble, or any doubt about the bytes, it falls back to the whole chunk, where the wrong
//! fragment can be found.

use super::*;
use crate::fetch::FetchedRange;
use crate::view::Readiness;
use tessera_accel::hash::{GROUP_BYTES, HASH_BYTES, group_count};
use tessera_stripe::Class;
use tessera_stripe::{ClassLayout, RangeJob, RangePart, slices, steps_around};
use tessera_wire::PgInfo;
use tessera_wire::data::GetItem;

/// One small read in progress.
#[derive(Debug)]
pub(super) struct SmallRead {
    chunk: ChunkInfo,
    name: Hash,
    class: Arc<Class>,
    pg: Arc<PgInfo>,
    waiter: Waiter,
    keep: bool,
    /// Whole groups around the requested bytes, as a range of the chunk.
    range: Range<u64>,
    parts: Vec<Part>,
    groups: Option<Bytes>,
    degraded: bool,
    computing: bool,
}

#[derive(Debug)]
struct Part {
    number: u32,
    at: usize,
    len: usize,
    asked_ns: i64,
    state: PartState,
}

#[derive(Debug, PartialEq, Eq)]
enum PartState {
    Asked,
    Here(Bytes),
    Failed,
}

/// A fragment and a range of it.
type Piece = (u32, Range<usize>);

/// What to request for a small read.
struct Plan {
    pieces: Vec<Piece>,
    /// Some of the pieces stand in for others.
    degraded: bool,
}

impl SmallRead {
    fn disk_of(&self, fragment: u32) -> u64 {
        self.pg.members.get(fragment as usize).map_or(0, |m| m.disk_id)
    }

    pub fn next_due(&self, hedge_ns: i64) -> Option<i64> {
        let asked = self.parts.iter().filter(|p| p.state == PartState::Asked);
        asked.map(|p| p.asked_ns.saturating_add(hedge_ns)).min()
    }
}

impl ReadCore {
    pub(super) fn start_small(&mut self, chunk: ChunkInfo, waiter: Waiter, keep: bool) {
        let found = {
            let view = self.view.read();
            view.class(chunk.class_id).zip(view.pg(chunk.pg_id)).zip(Hash::try_from(&chunk.hash[..]).ok())
        };
        let Some(((class, pg), name)) = found else { return self.want_whole(chunk, Some(waiter), keep) };
        let group = GROUP_BYTES as u64;
        let Range { start, end } = waiter.fetched();
        let range = start / group * group..end.next_multiple_of(group).min(chunk.len_bytes);
        let groups = self.cache.shared.groups.get(&chunk.chunk_id);
        let read = SmallRead {
            chunk,
            name,
            class,
            pg,
            waiter,
            keep,
            range,
            parts: Vec::new(),
            groups,
            degraded: false,
            computing: false,
        };
        let plan = self.plan(&read);
        let key = self.insert_small(read);
        self.request_pieces(key, plan);
    }

    /// What to request first: the range of the best copy, or of the slices. `None`: neither is within reach.
    fn plan(&self, read: &SmallRead) -> Option<Plan> {
        let copy = self.best_fragments(read, &[]).into_iter().find(|number| read.class.is_copy(*number));
        match (copy, read.class.coder()) {
            (None, None) => None,
            // The best copy, unless it is the only one and slices are easier to reach.
            (Some(copy), coder) if coder.is_none() || !self.is_doubtful(read, copy) => {
                let range = read.range.start as usize..read.range.end as usize;
                Some(Plan { pieces: vec![(copy, range)], degraded: false })
            }
            _ => self.plan_slices(read, None),
        }
    }

    /// The ranges of the slices; for doubtful ones, and for `failed`, what decodes them.
    fn plan_slices(&self, read: &SmallRead, failed: Option<u32>) -> Option<Plan> {
        let slices = slices(&read.class, read.chunk.len_bytes, read.range.clone());
        let doubtful = |(number, _): &(u32, _)| failed == Some(*number) || self.is_doubtful(read, *number);
        let (without, sound): (Vec<_>, Vec<_>) = slices.into_iter().partition(doubtful);
        match without.is_empty() {
            true => Some(Plan { pieces: sound, degraded: false }),
            false => self.plan_around(read, sound, &without),
        }
    }

    fn is_doubtful(&self, read: &SmallRead, number: u32) -> bool {
        self.rate(read, number) > (false, Readiness::Good)
    }

    /// The positions of `failed` in k other fragments, and `pieces`.
    fn plan_around(&self, read: &SmallRead, mut pieces: Vec<Piece>, failed: &[Piece]) -> Option<Plan> {
        let from = failed.iter().map(|(_, r)| r.start).min().unwrap_or(0);
        let to = failed.iter().map(|(_, r)| r.end).max().unwrap_or(0);
        let Range { start: from, end: to } = steps_around(&read.class, read.chunk.len_bytes, from..to);
        let without: Vec<u32> = failed.iter().map(|(number, _)| *number).collect();
        let others = self.best_fragments(read, &without);
        for number in others.get(..read.class.k as usize)? {
            // Beyond the end of a short data fragment there are only zeros, which are not fetched.
            let coded = read.class.coded_len(read.chunk.len_bytes, *number);
            pieces.push((*number, from.min(coded)..to.min(coded)));
        }
        Some(Plan { pieces, degraded: true })
    }

    /// Requests the pieces of a plan. Without a plan, the whole chunk is read.
    fn request_pieces(&mut self, key: u64, plan: Option<Plan>) {
        let (Some(plan), Some(read)) = (plan, self.smalls.get_mut(&key)) else { return self.give_up_small(key) };
        read.degraded |= plan.degraded;
        let mut want_groups = read.groups.is_none();
        let mut items = Vec::new();
        for (number, range) in plan.pieces {
            let state = if range.is_empty() { PartState::Here(Bytes::new()) } else { PartState::Asked };
            let asked = state == PartState::Asked;
            let (at, len) = (range.start, range.len());
            read.parts.push(Part { number, at, len, asked_ns: self.now, state });
            if !asked || number as usize >= read.pg.members.len() {
                continue;
            }
            let item = GetItem {
                chunk_id: read.chunk.chunk_id,
                fragment: number,
                disk_id: read.disk_of(number),
                offset: at as u32,
                len_bytes: len as u32,
                want_groups: std::mem::take(&mut want_groups),
                ..GetItem::default()
            };
            items.push((read.parts.len() - 1, item));
        }
        for (part, item) in items {
            let node_id = self.view.read().node_of(item.disk_id);
            match node_id {
                Some(node_id) => self.want_range(node_id, item, key, part),
                None => return self.give_up_small(key),
            }
        }
        self.small_advance(key);
    }

    /// Rank of a fragment, smaller is better: not known missing first, then the readiness of its disk.
    fn rate(&self, read: &SmallRead, number: u32) -> (bool, Readiness) {
        let missing = read.chunk.missing.contains(&number);
        (missing, self.view.read().readiness(read.disk_of(number), self.now))
    }

    /// Fragments that may be there, best first.
    fn best_fragments(&self, read: &SmallRead, without: &[u32]) -> Vec<u32> {
        let count = read.class.fragments();
        let usable = |n: &u32| {
            let (missing, readiness) = self.rate(read, *n);
            !without.contains(n) && !missing && readiness < Readiness::Down
        };
        let mut numbers: Vec<u32> = (0..count).filter(usable).collect();
        let turn = |n: u32| (u64::from(n) + read.chunk.chunk_id) % u64::from(count.max(1));
        let local = |n: u32| self.view.read().is_local(read.disk_of(n), &self.options.host);
        numbers.sort_by_key(|n| (self.rate(read, *n), !local(*n), !read.class.is_plain(*n), turn(*n)));
        numbers
    }

    pub(super) fn small_got(&mut self, key: u64, part: usize, result: Result<FetchedRange, Error>) {
        let Some(read) = self.smalls.get_mut(&key) else { return };
        let Some(part) = read.parts.get_mut(part).filter(|p| p.state == PartState::Asked) else { return };
        match result {
            Ok(got) if got.bytes.len() == part.len => {
                part.state = PartState::Here(got.bytes);
                if read.groups.is_none() && !got.groups.is_empty() {
                    read.groups = Some(got.groups);
                }
            }
            Ok(_) => part.state = PartState::Failed,
            Err(error) => {
                part.state = PartState::Failed;
                if matches!(error.code(), Code::NotFound | Code::Corrupt | Code::Io) {
                    let (chunk_id, fragment) = (read.chunk.chunk_id, part.number);
                    let disk_id = read.disk_of(fragment);
                    // Without a session the chunk may be gone: whoever reads all of it finds out.
                    if self.session.lease.id != 0 {
                        self.report_bad(vec![FragmentRef { chunk_id, fragment, epoch: 0, disk_id }]);
                    }
                }
            }
        }
        self.small_advance(key);
    }

    fn small_advance(&mut self, key: u64) {
        let Some(read) = self.smalls.get_mut(&key) else { return };
        if read.computing {
            return;
        }
        let failed = read.parts.iter().any(|p| p.state == PartState::Failed);
        let waiting = read.parts.iter().any(|p| p.state == PartState::Asked);
        if failed {
            // Only copies, or a second failure: fall back to the whole chunk.
            if read.degraded || read.class.coder().is_none() {
                return self.give_up_small(key);
            }
            return self.small_around(key);
        }
        if waiting {
            return;
        }
        let expected = group_count(read.chunk.len_bytes) as usize * HASH_BYTES;
        let Some(groups) = read.groups.clone().filter(|g| g.len() == expected) else {
            return self.give_up_small(key);
        };
        read.computing = true;
        let part = |p: &Part| match &p.state {
            PartState::Here(bytes) => Some(RangePart { number: p.number, at: p.at, bytes: bytes.clone() }),
            _ => None,
        };
        let job = RangeJob {
            class: read.class.clone(),
            chunk_len: read.chunk.len_bytes,
            name: read.name,
            groups,
            range: read.range.clone(),
            parts: read.parts.iter().filter_map(part).collect(),
        };
        self.compute(Job::Range(job), JobOwner::Small(key));
    }

    /// Decodes around the parts that are missing.
    fn small_around(&mut self, key: u64) {
        let Some(mut read) = self.smalls.remove(&key) else { return };
        let (here, failed): (Vec<Part>, Vec<Part>) =
            std::mem::take(&mut read.parts).into_iter().partition(|p| matches!(p.state, PartState::Here(_)));
        read.parts = here;
        let plan = match failed.iter().map(|p| p.number).find(|number| read.class.is_copy(*number)) {
            // The copy was requested for the whole range; now the slices are, except the one that the copy begins with.
            Some(copy) => self.plan_slices(&read, Some(copy)),
            None => {
                let failed: Vec<Piece> = failed.into_iter().map(|p| (p.number, p.at..p.at + p.len)).collect();
                self.plan_around(&read, Vec::new(), &failed)
            }
        };
        read.degraded = true;
        // Answers in flight would now match other parts: nothing receives them under a new key.
        let key = self.insert_small(read);
        self.request_pieces(key, plan);
    }

    fn insert_small(&mut self, read: SmallRead) -> u64 {
        let key = self.next_small;
        self.next_small += 1;
        self.smalls.insert(key, read);
        key
    }

    pub(super) fn tick_smalls(&mut self) {
        let hedge_ns = self.view.read().hedge_after_ns(&self.options);
        let due = |read: &SmallRead| read.next_due(hedge_ns).is_some_and(|at| at <= self.now);
        let late: Vec<u64> = self.smalls.iter().filter(|(_, read)| due(read)).map(|(key, _)| *key).collect();
        for key in late {
            let (now, late) = (self.now, &mut self.report.late);
            if let Some(read) = self.smalls.get_mut(&key) {
                for part in &mut read.parts {
                    if part.state == PartState::Asked && now.saturating_sub(part.asked_ns) >= hedge_ns {
                        *late += 1;
                        part.state = PartState::Failed;
                    }
                }
            }
            self.small_advance(key);
        }
    }

    pub(super) fn small_computed(&mut self, key: u64, bytes: Option<Bytes>) {
        match bytes {
            None => self.give_up_small(key),
            Some(bytes) => {
                let Some(read) = self.smalls.remove(&key) else { return };
                if let Some(groups) = &read.groups {
                    // A copy, so that a few hashes do not keep a whole received frame in memory.
                    self.cache.shared.groups.insert(read.chunk.chunk_id, Bytes::copy_from_slice(groups));
                }
                let Range { start, end } = read.waiter.fetched();
                assert!(read.range.start <= start, "a range begins behind what was asked for");
                let from = (start - read.range.start) as usize;
                self.set_ready(&read.waiter, &[bytes.slice(from..from + (end - start) as usize)]);
            }
        }
    }

    fn give_up_small(&mut self, key: u64) {
        if let Some(read) = self.smalls.remove(&key) {
            self.want_whole(read.chunk, Some(read.waiter), read.keep);
        }
    }
}
