//! The client's view of the cluster: nodes, disks, groups and classes, merged from the answers it gets; which nodes did
//! not answer lately, and how long answers take. Plain data that the cores share.

use crate::config::{Options, ms};
use crate::prealloc::PreallocatedPool;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use tessera_stripe::{Class, ClassError};
use tessera_wire::meta::ClusterMap;
use tessera_wire::{ClassInfo, DiskInfo, Health, NodeInfo, PgInfo};

/// One view, shared by all sessions of a client.
pub type SharedView = Arc<RwLock<View>>;

/// See the module.
#[derive(Debug, Default)]
pub struct View {
    version: u64,
    nodes: HashMap<u64, Stamped<NodeInfo>>,
    disks: HashMap<u64, Stamped<DiskInfo>>,
    pgs: HashMap<u64, Arc<PgInfo>>,
    classes: HashMap<u32, Arc<Class>>,
    suspects: HashMap<u64, i64>,
    latencies: Latencies,
    /// Chunk ids granted in advance.
    pub preallocated: PreallocatedPool,
    /// Chunks of optimistic writes of which not all redundancy was stored, since somebody asked.
    pub left_to_repair: u64,
}

#[derive(Debug)]
struct Stamped<T> {
    map_version: u64,
    value: T,
}

/// How suitable a disk is for reading; smaller is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readiness {
    /// Its node answers.
    Good,
    /// Its node did not answer lately, or is draining.
    Doubtful,
    /// The manager calls it down or out, or the client does not know it.
    Down,
}

impl View {
    /// An empty view.
    pub fn shared() -> SharedView {
        Arc::new(RwLock::new(View::default()))
    }

    /// Version of the last complete map, which the manager need not send again. Partial answers do not raise it:
    /// the client would never learn of the changes that they left out.
    pub fn known_version(&self) -> u64 {
        self.version
    }

    /// Merges the map of an answer; `complete`: it has every change since [`View::known_version`].
    pub fn merge(&mut self, map: &ClusterMap, complete: bool) {
        for node in &map.nodes {
            stamp(&mut self.nodes, node.node_id, node, map.version);
        }
        for disk in &map.disks {
            stamp(&mut self.disks, disk.disk_id, disk, map.version);
        }
        for pg in &map.pgs {
            let newer = self.pgs.get(&pg.pg_id).is_none_or(|known| known.epoch <= pg.epoch);
            if newer {
                self.pgs.insert(pg.pg_id, Arc::new(pg.clone()));
            }
        }
        for info in &map.classes {
            self.add_class(info);
        }
        if complete {
            self.version = self.version.max(map.version);
        }
    }

    /// Adds what an answer about chunks brings along: their classes, and changes of the map.
    pub fn learn(&mut self, classes: &[ClassInfo], map: Option<&ClusterMap>) {
        classes.iter().for_each(|class| self.add_class(class));
        if let Some(map) = map {
            self.merge(map, false);
        }
    }

    /// Adds a class. A class that this build cannot compute is left out, so looking it up fails.
    pub fn add_class(&mut self, info: &ClassInfo) {
        if let Err(why) = self.class_of(info) {
            tracing::warn!(class = info.class_id, %why, "class left out");
        }
    }

    /// The class that `info` describes; adds it if it is new.
    ///
    /// # Errors
    /// This build cannot compute it.
    pub fn class_of(&mut self, info: &ClassInfo) -> Result<Arc<Class>, ClassError> {
        if let Some(known) = self.classes.get(&info.class_id).filter(|known| known.info() == info) {
            return Ok(known.clone());
        }
        let class = Arc::new(Class::new(info.clone())?);
        self.classes.insert(info.class_id, class.clone());
        Ok(class)
    }

    /// A group.
    pub fn pg(&self, pg_id: u64) -> Option<Arc<PgInfo>> {
        self.pgs.get(&pg_id).cloned()
    }

    /// A class.
    pub fn class(&self, class_id: u32) -> Option<Arc<Class>> {
        self.classes.get(&class_id).cloned()
    }

    /// A disk.
    pub fn disk(&self, disk_id: u64) -> Option<&DiskInfo> {
        self.disks.get(&disk_id).map(|d| &d.value)
    }

    /// Node that serves a disk.
    pub fn node_of(&self, disk_id: u64) -> Option<u64> {
        self.disk(disk_id).map(|disk| disk.node_id)
    }

    /// A node.
    pub fn node(&self, node_id: u64) -> Option<&NodeInfo> {
        self.nodes.get(&node_id).map(|n| &n.value)
    }

    /// Whether a disk's node has the host label `host`; an empty label is on no host.
    pub fn is_local(&self, disk_id: u64, host: &str) -> bool {
        !host.is_empty() && self.node_of(disk_id).and_then(|id| self.node(id)).is_some_and(|node| node.host == host)
    }

    /// Groups with a member on `disk_id`, in order.
    pub fn pgs_on_disk(&self, disk_id: u64) -> Vec<u64> {
        let on = |pg: &&Arc<PgInfo>| pg.members.iter().any(|m| m.put_disk_id() == disk_id);
        let mut ids: Vec<u64> = self.pgs.values().filter(on).map(|pg| pg.pg_id).collect();
        ids.sort_unstable();
        ids
    }

    /// How suitable `disk_id` is for reading now.
    pub fn readiness(&self, disk_id: u64, now_ns: i64) -> Readiness {
        let Some((disk, node)) = self.disk(disk_id).and_then(|disk| Some((disk, self.node(disk.node_id)?))) else {
            return Readiness::Down;
        };
        let by_health = |health: Health| match health {
            Health::Up | Health::Draining | Health::Unknown => Readiness::Good,
            Health::Drained => Readiness::Doubtful,
            Health::Down | Health::Out => Readiness::Down,
        };
        let suspect = self.suspects.get(&node.node_id).is_some_and(|until| *until > now_ns);
        let by_answers = if suspect { Readiness::Doubtful } else { Readiness::Good };
        by_health(disk.health()).max(by_health(node.health())).max(by_answers)
    }

    /// Notes that a node did not answer.
    pub fn suspect(&mut self, node_id: u64, now_ns: i64, options: &Options) {
        self.suspects.insert(node_id, now_ns.saturating_add(ms(options.suspect_ms)));
    }

    /// Notes that a node answered after `took_ns`.
    pub fn answered(&mut self, node_id: u64, took_ns: i64) {
        self.suspects.remove(&node_id);
        self.latencies.add(took_ns);
    }

    /// After how long a get counts as late: the larger of the configured least time and a multiple of the
    /// 90th percentile of recent gets (Dean, Barroso, "The tail at scale", CACM 2013).
    pub fn hedge_after_ns(&self, options: &Options) -> i64 {
        let factor = i64::try_from(options.hedge_factor).unwrap_or(i64::MAX);
        ms(options.hedge_min_ms).max(self.latencies.p90_ns.saturating_mul(factor))
    }
}

fn stamp<T: Clone>(table: &mut HashMap<u64, Stamped<T>>, id: u64, value: &T, map_version: u64) {
    let newer = table.get(&id).is_none_or(|known| known.map_version <= map_version);
    if newer {
        table.insert(id, Stamped { map_version, value: value.clone() });
    }
}

/// Times of the last answers.
#[derive(Debug, Default)]
struct Latencies {
    recent_ns: Vec<i64>,
    next: usize,
    p90_ns: i64,
}

impl Latencies {
    const KEPT: usize = 128;

    fn add(&mut self, took_ns: i64) {
        let took_ns = took_ns.max(0);
        match self.recent_ns.get_mut(self.next) {
            Some(slot) => *slot = took_ns,
            None => self.recent_ns.push(took_ns),
        }
        self.next = (self.next + 1) % Self::KEPT;
        // Sorting once every 16 answers is enough: the percentile moves slowly.
        if self.next.is_multiple_of(16) {
            let mut sorted = self.recent_ns.clone();
            sorted.sort_unstable();
            self.p90_ns = sorted[(sorted.len() * 9 / 10).min(sorted.len() - 1)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_wire::PgMember;

    fn map(version: u64, health: Health, epoch: u64) -> ClusterMap {
        let node = NodeInfo { node_id: 1, name: "n1".into(), health: health as i32, ..Default::default() };
        let disk = DiskInfo { disk_id: 10, node_id: 1, health: Health::Up as i32, ..Default::default() };
        let pg = PgInfo { pg_id: 5, epoch, members: vec![PgMember { disk_id: 10, ..Default::default() }] };
        ClusterMap { version, nodes: vec![node], disks: vec![disk], pgs: vec![pg], classes: vec![] }
    }

    #[test]
    fn older_news_never_replaces_newer() {
        let mut view = View::default();
        view.merge(&map(7, Health::Down, 3), true);
        view.merge(&map(6, Health::Up, 2), false);
        assert_eq!(view.readiness(10, 0), Readiness::Down);
        assert_eq!(view.pg(5).unwrap().epoch, 3);
        view.merge(&map(8, Health::Up, 4), false);
        assert_eq!(view.readiness(10, 0), Readiness::Good);
        assert_eq!((view.pg(5).unwrap().epoch, view.known_version()), (4, 7));
        assert_eq!(view.pgs_on_disk(10), [5]);
        assert_eq!(view.readiness(11, 0), Readiness::Down);
    }

    #[test]
    fn suspicion_ends_with_an_answer_or_with_time() {
        let (mut view, options) = (View::default(), Options::default());
        view.merge(&map(1, Health::Up, 1), true);
        view.suspect(1, 0, &options);
        assert_eq!(view.readiness(10, 1), Readiness::Doubtful);
        assert_eq!(view.readiness(10, ms(options.suspect_ms)), Readiness::Good);
        view.answered(1, 5);
        assert_eq!(view.readiness(10, 1), Readiness::Good);
    }

    #[test]
    fn the_hedge_follows_what_answers_take() {
        let (mut view, options) = (View::default(), Options::default());
        assert_eq!(view.hedge_after_ns(&options), ms(50));
        for _ in 0..128 {
            view.answered(1, ms(100));
        }
        assert_eq!(view.hedge_after_ns(&options), ms(400));
    }
}
