//! Lays out placement groups over disks, and selects the disk that replaces a lost or moving member. Pure.
//!
//! The aim is *declustering* (Holland and Gibson, "Parity declustering for continuous operation in redundant disk
//! arrays", ASPLOS 1992): when every pair of disks shares about equally many groups, the rebuild of any lost
//! disk reads from all others evenly; when every disk holds each position equally often, data and parity reads
//! and writes are even too. Exact block designs exist only for special numbers of disks, so groups are
//! laid out greedily: each new group takes the disks that together raise the sum of squared pair counts least, an
//! exchange pass undoes early unlucky picks, and each disk gets the position that it has held least.
//!
//! Nothing here knows SQL or the state of the cluster. The same input gives the same groups.

use std::collections::BTreeMap;

/// A disk that groups may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutDisk {
    /// Disk id.
    pub id: u64,
    /// Host label: a group has at most one disk of a host.
    pub host: String,
    /// Share of the groups it should hold relative to the others (its capacity); 0 counts as 1.
    pub weight: u64,
}

/// Upper bound of a disk's weight relative to the mean, so that one large disk is not in every group.
const MAX_RELATIVE_WEIGHT: f64 = 4.0;
/// Exchange passes over a new group.
const EXCHANGE_PASSES: usize = 4;

/// Counts which disks share groups, and at which positions; grows group by group.
#[derive(Debug, Clone)]
pub struct Layout {
    width: usize,
    disks: Vec<LayoutDisk>,
    host: Vec<u32>,
    index: BTreeMap<u64, usize>,
    /// Weight relative to the mean, per disk.
    weight: Vec<f64>,
    /// Groups that a and b share, at `a * disks + b`.
    pairs: Vec<u32>,
    /// Groups in which a disk holds position p, at `disk * width + p`.
    positions: Vec<u32>,
    /// Groups a disk is in.
    load: Vec<u32>,
    /// Groups counted so far; breaks ties differently for each group.
    groups: u64,
}

impl Layout {
    /// A layout of groups of `width` disks that starts from `existing` groups (disk ids in order of position; disks that
    /// are not in `disks` are ignored). The order of `disks` does not matter.
    pub fn new(disks: &[LayoutDisk], width: usize, existing: &[Vec<u64>]) -> Layout {
        let mut disks = disks.to_vec();
        disks.sort_by_key(|d| d.id);
        disks.dedup_by_key(|d| d.id);
        let mut labels: Vec<&str> = disks.iter().map(|d| d.host.as_str()).collect();
        labels.sort_unstable();
        labels.dedup();
        let host = disks.iter().map(|d| labels.binary_search(&d.host.as_str()).unwrap_or(0) as u32).collect();
        let n = disks.len();
        let mean = disks.iter().map(|d| d.weight.max(1) as f64).sum::<f64>() / n.max(1) as f64;
        let weight = disks.iter().map(|d| relative(d.weight, mean)).collect();
        let index = disks.iter().enumerate().map(|(i, d)| (d.id, i)).collect();
        let mut layout = Layout {
            width,
            host,
            index,
            weight,
            pairs: vec![0; n * n],
            positions: vec![0; n * width],
            load: vec![0; n],
            groups: 0,
            disks,
        };
        for group in existing {
            layout.add(group);
        }
        layout
    }

    /// Distinct hosts among the disks.
    #[cfg(test)]
    pub fn hosts(&self) -> usize {
        let mut hosts = self.host.clone();
        hosts.sort_unstable();
        hosts.dedup();
        hosts.len()
    }

    /// Counts a group (disk ids in order of position).
    pub fn add(&mut self, group: &[u64]) {
        self.count(group, true);
        self.groups += 1;
    }

    /// Removes a group from the counts.
    pub fn remove(&mut self, group: &[u64]) {
        self.count(group, false);
    }

    fn count(&mut self, group: &[u64], up: bool) {
        let step = |c: &mut u32| *c = if up { *c + 1 } else { c.saturating_sub(1) };
        let members: Vec<(usize, usize)> =
            group.iter().enumerate().filter_map(|(p, id)| Some((p, *self.index.get(id)?))).collect();
        for &(p, a) in &members {
            step(&mut self.load[a]);
            if p < self.width {
                step(&mut self.positions[a * self.width + p]);
            }
            for &(_, b) in members.iter().filter(|(_, b)| *b != a) {
                step(&mut self.pairs[a * self.disks.len() + b]);
            }
        }
    }

    /// Proposes the next group and counts it. `None`: the disks are on fewer than `width` hosts.
    pub fn propose(&mut self) -> Option<Vec<u64>> {
        let mut members = self.completed(Vec::with_capacity(self.width))?;
        self.exchange(&mut members);
        let ordered = self.assign_positions(&members);
        assert_eq!(ordered.len(), self.width, "a group has as many members as its class has fragments");
        let mut hosts: Vec<u32> = ordered.iter().map(|&d| self.host[d]).collect();
        hosts.sort_unstable();
        assert!(hosts.windows(2).all(|w| w[0] != w[1]), "members stand on distinct hosts (P6)");
        let group: Vec<u64> = ordered.into_iter().map(|d| self.disks[d].id).collect();
        self.add(&group);
        Some(group)
    }

    /// A group whose first member is on `host`; it is not counted. `None`: the host is unknown, or there are too few other hosts.
    pub fn propose_at(&self, host: &str) -> Option<Vec<u64>> {
        let on_host = (0..self.disks.len()).filter(|&d| self.disks[d].host == host);
        let members = self.completed(vec![on_host.min_by(|&a, &b| self.order(&[], a, b))?])?;
        Some(members.into_iter().map(|d| self.disks[d].id).collect())
    }

    /// Adds the cheapest disks until there are `width` members. `None`: the disks are on too few hosts.
    fn completed(&self, mut members: Vec<usize>) -> Option<Vec<usize>> {
        while members.len() < self.width {
            let best = self.candidates(&members).min_by(|&a, &b| self.order(&members, a, b))?;
            members.push(best);
        }
        Some(members)
    }

    /// Selects the disk that takes over position `position` of `group`: one that `eligible` accepts, on a host of no
    /// other member and of none of `also_used` (disks that members are moving to). The counts do not change; call
    /// [`Layout::remove`] with the group before and [`Layout::add`] with the group after.
    pub fn replacement(
        &self,
        group: &[u64],
        position: usize,
        also_used: &[u64],
        eligible: impl Fn(&LayoutDisk) -> bool,
    ) -> Option<u64> {
        let stay: Vec<usize> = group
            .iter()
            .enumerate()
            .filter(|(p, _)| *p != position)
            .map(|(_, id)| id)
            .chain(also_used)
            .filter_map(|id| self.index.get(id).copied())
            .collect();
        let leaving = group.get(position).and_then(|id| self.index.get(id)).copied();
        self.candidates(&stay)
            .filter(|&d| Some(d) != leaving && eligible(&self.disks[d]))
            .min_by(|&a, &b| {
                let cost = |d: usize| {
                    let at = self.positions.get(d * self.width + position).copied().unwrap_or(0) as f64;
                    self.cost(&stay, d) + at / self.weight[d]
                };
                cost(a).total_cmp(&cost(b)).then_with(|| self.tie(a).cmp(&self.tie(b)))
            })
            .map(|d| self.disks[d].id)
    }

    /// Groups that `a` and `b` share.
    #[cfg(test)]
    pub fn shared(&self, a: u64, b: u64) -> u32 {
        match (self.index.get(&a), self.index.get(&b)) {
            (Some(&a), Some(&b)) => self.pairs[a * self.disks.len() + b],
            _ => 0,
        }
    }

    /// Groups in which `disk` holds `position`.
    #[cfg(test)]
    pub fn held(&self, disk: u64, position: usize) -> u32 {
        self.index.get(&disk).map_or(0, |&d| self.positions[d * self.width + position])
    }

    /// Disks on hosts without any of `members`.
    fn candidates<'a>(&'a self, members: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
        (0..self.disks.len()).filter(move |&d| members.iter().all(|&m| self.host[m] != self.host[d]))
    }

    /// Cost of disk `d` joining `members`: growth of the squared pair counts and of the squared loads.
    fn cost(&self, members: &[usize], d: usize) -> f64 {
        let n = self.disks.len();
        let pairs: f64 = members
            .iter()
            .filter(|&&m| m != d)
            .map(|&m| (self.pairs[d * n + m] as f64 + 0.5) / (self.weight[d] * self.weight[m]))
            .sum();
        // A disk's pair counts add up to load * (width - 1); weighing the load like as many pairs as the group
        // has keeps loads even without dictating the pairs.
        pairs + (self.load[d] as f64 + 0.5) / self.weight[d] * self.width.max(2) as f64 / 2.0
    }

    fn order(&self, members: &[usize], a: usize, b: usize) -> std::cmp::Ordering {
        self.cost(members, a).total_cmp(&self.cost(members, b)).then_with(|| self.tie(a).cmp(&self.tie(b)))
    }

    /// Breaks ties the same way on every machine, differently for each group: always taking the lowest id
    /// would build the same few groups over and over.
    fn tie(&self, d: usize) -> u64 {
        mix(self.disks[d].id ^ mix(self.groups))
    }

    /// Exchanges members one by one for cheaper disks outside the group, in at most [`EXCHANGE_PASSES`] passes.
    fn exchange(&self, members: &mut [usize]) {
        for _ in 0..EXCHANGE_PASSES {
            let mut changed = false;
            for i in 0..members.len() {
                let rest: Vec<usize> = members.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, &m)| m).collect();
                let now = self.cost(&rest, members[i]);
                let best = self.candidates(&rest).min_by(|&a, &b| self.order(&rest, a, b));
                if let Some(best) = best.filter(|&b| self.cost(&rest, b) < now - 1e-9) {
                    members[i] = best;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// Orders members so that each holds the position it has held least, by exchanging while that helps.
    fn assign_positions(&self, members: &[usize]) -> Vec<usize> {
        let mut order = members.to_vec();
        order.sort_by_key(|&d| self.tie(d));
        let at = |d: usize, p: usize| self.positions[d * self.width + p] as i64;
        for _ in 0..order.len().max(1) {
            let mut changed = false;
            for i in 0..order.len() {
                for j in i + 1..order.len() {
                    let (a, b) = (order[i], order[j]);
                    if at(a, j) + at(b, i) < at(a, i) + at(b, j) {
                        order.swap(i, j);
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        order
    }
}

fn relative(weight: u64, mean: f64) -> f64 {
    let relative = weight.max(1) as f64 / mean.max(1.0);
    assert!(relative.is_finite() && relative > 0.0, "weight {weight} of a mean of {mean}");
    relative.clamp(1.0 / MAX_RELATIVE_WEIGHT, MAX_RELATIVE_WEIGHT)
}

/// SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014): spreads ids over all 64 bits.
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// How many groups of `width` should take new chunks when there are `disks` disks: enough that each disk is in several
/// and each pair shares about two, so that writes and rebuilds spread over all disks.
pub fn open_groups(disks: usize, width: usize) -> usize {
    let pairs = if width > 1 { (2 * disks * disks.saturating_sub(1)).div_ceil(width * (width - 1)) } else { 0 };
    pairs.max(2 * disks).clamp(1, MAX_OPEN_GROUPS)
}

/// Upper bound of open groups; more would only cost rows.
pub const MAX_OPEN_GROUPS: usize = 1024;
const _: () = assert!(MAX_OPEN_GROUPS > 0, "chunks need a group");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn disks(hosts: usize, per_host: usize) -> Vec<LayoutDisk> {
        (0..hosts * per_host)
            .map(|i| LayoutDisk { id: i as u64 + 1, host: format!("h{}", i / per_host), weight: 1000 })
            .collect()
    }

    fn groups(layout: &mut Layout, count: usize) -> Vec<Vec<u64>> {
        (0..count).map(|_| layout.propose().expect("enough hosts")).collect()
    }

    /// (max, mean) over pairs of disks on distinct hosts.
    fn pair_spread(layout: &Layout, disks: &[LayoutDisk]) -> (f64, f64, f64) {
        let mut counts = Vec::new();
        for a in disks {
            for b in disks.iter().filter(|b| b.id > a.id && b.host != a.host) {
                counts.push(layout.shared(a.id, b.id) as f64);
            }
        }
        spread(&counts)
    }

    fn position_spread(layout: &Layout, disks: &[LayoutDisk], width: usize) -> (f64, f64, f64) {
        let counts: Vec<f64> = disks.iter().flat_map(|d| (0..width).map(|p| layout.held(d.id, p) as f64)).collect();
        spread(&counts)
    }

    fn spread(counts: &[f64]) -> (f64, f64, f64) {
        let max = counts.iter().copied().fold(0.0, f64::max);
        let min = counts.iter().copied().fold(f64::INFINITY, f64::min);
        (max, min, counts.iter().sum::<f64>() / counts.len().max(1) as f64)
    }

    #[test]
    fn too_few_hosts_give_no_group() {
        let mut layout = Layout::new(&disks(5, 3), 6, &[]);
        assert_eq!(layout.hosts(), 5);
        assert_eq!(layout.propose(), None);
        assert_eq!(Layout::new(&[], 1, &[]).propose(), None);
    }

    #[test]
    fn eight_nodes_of_one_disk_share_evenly() {
        let disks = disks(8, 1);
        let mut layout = Layout::new(&disks, 6, &[]);
        groups(&mut layout, 56);
        let (max, min, mean) = pair_spread(&layout, &disks);
        assert!((mean - 30.0).abs() < 1e-9 && max <= 33.0 && min >= 27.0, "pairs {min}..{max}, mean {mean}");
        let (max, min, mean) = position_spread(&layout, &disks, 6);
        assert!((mean - 7.0).abs() < 1e-9 && max <= 8.0 && min >= 6.0, "positions {min}..{max}, mean {mean}");
    }

    #[test]
    fn a_lost_disk_is_rebuilt_by_all_others_evenly() {
        let disks = disks(20, 1);
        let mut layout = Layout::new(&disks, 6, &[]);
        let mut all = groups(&mut layout, open_groups(20, 6) * 4);
        let lost = 7;
        let (mut reads, mut writes) = (BTreeMap::<u64, u32>::new(), BTreeMap::<u64, u32>::new());
        for group in &mut all {
            let Some(p) = group.iter().position(|d| *d == lost) else { continue };
            for d in group.iter().filter(|d| **d != lost) {
                *reads.entry(*d).or_default() += 1;
            }
            layout.remove(group);
            let new = layout.replacement(group, p, &[], |d| d.id != lost).expect("a spare host");
            group[p] = new;
            layout.add(group);
            *writes.entry(new).or_default() += 1;
        }
        let even = |m: &BTreeMap<u64, u32>, slack: f64| {
            let mean = m.values().sum::<u32>() as f64 / 19.0;
            assert_eq!(m.len(), 19, "every other disk takes part");
            assert!(m.values().all(|&v| (v as f64) <= mean * slack + 1.0), "{m:?}, mean {mean}");
        };
        even(&reads, 1.5);
        even(&writes, 1.5);
    }

    #[test]
    fn heavier_disks_hold_more() {
        let mut disks = disks(12, 1);
        for d in disks.iter_mut().take(6) {
            d.weight = 2000;
        }
        let mut layout = Layout::new(&disks, 3, &[]);
        groups(&mut layout, 240);
        let load = |r: std::ops::RangeInclusive<u64>| r.map(|id| layout.load[layout.index[&id]]).sum::<u32>() as f64;
        let ratio = load(1..=6) / load(7..=12);
        assert!((1.6..=2.4).contains(&ratio), "ratio {ratio}");
    }

    #[test]
    fn replacement_avoids_hosts_of_members_and_of_moves_under_way() {
        let disks = disks(5, 2);
        let layout = Layout::new(&disks, 3, &[]);
        // hosts: 1,2=h0 3,4=h1 5,6=h2 7,8=h3 9,10=h4
        let new = layout.replacement(&[1, 3, 5], 0, &[7], |_| true).unwrap();
        assert!([2, 9, 10].contains(&new), "{new}");
        assert_eq!(layout.replacement(&[1, 3, 5], 0, &[7], |d| d.host == "h1"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn groups_stand_on_distinct_hosts_and_spread_evenly(
            hosts in 3usize..24, per_host in 1usize..4, width_seed in 0usize..24,
        ) {
            let width = 2 + width_seed % (hosts - 1).min(12);
            let disks = disks(hosts, per_host);
            let mut layout = Layout::new(&disks, width, &[]);
            let count = open_groups(disks.len(), width) * 2;
            let all = groups(&mut layout, count);
            let host = |id: u64| (id as usize - 1) / per_host;
            for group in &all {
                let mut on: Vec<usize> = group.iter().map(|d| host(*d)).collect();
                on.sort_unstable();
                on.dedup();
                prop_assert_eq!(on.len(), width);
            }
            let (max, _, mean) = pair_spread(&layout, &disks);
            prop_assert!(max <= 1.5 * mean + 2.0, "pairs: max {} mean {}", max, mean);
            let (max, _, mean) = position_spread(&layout, &disks, width);
            prop_assert!(max <= 1.5 * mean + 2.0, "positions: max {} mean {}", max, mean);
            let (max, min, mean) = spread(&layout.load.iter().map(|l| *l as f64).collect::<Vec<_>>());
            prop_assert!(max <= 1.2 * mean + 1.0 && min >= 0.8 * mean - 1.0, "load {}..{} mean {}", min, max, mean);
        }

        #[test]
        fn the_same_input_gives_the_same_groups(hosts in 4usize..12, width in 1usize..5, seed in any::<u64>()) {
            let disks = disks(hosts, 2);
            let mut shuffled = disks.clone();
            shuffled.sort_by_key(|d| mix(d.id ^ seed));
            let a = groups(&mut Layout::new(&disks, width.min(hosts), &[]), 20);
            let b = groups(&mut Layout::new(&shuffled, width.min(hosts), &[]), 20);
            prop_assert_eq!(a, b);
        }

        #[test]
        fn balance_survives_losses(hosts in 9usize..20, lose in 1usize..3) {
            let disks = disks(hosts, 1);
            let mut layout = Layout::new(&disks, 6, &[]);
            let count = open_groups(hosts, 6) * 2;
            let mut all = groups(&mut layout, count);
            for lost in 1..=lose as u64 {
                for group in &mut all {
                    let Some(p) = group.iter().position(|d| *d == lost) else { continue };
                    layout.remove(group);
                    group[p] = layout.replacement(group, p, &[], |d| d.id > lost).expect("spare");
                    layout.add(group);
                }
            }
            let left: Vec<LayoutDisk> = disks.iter().filter(|d| d.id > lose as u64).cloned().collect();
            let (max, _, mean) = pair_spread(&layout, &left);
            prop_assert!(max <= 1.6 * mean + 2.0, "pairs: max {} mean {}", max, mean);
            let (max, _, mean) = position_spread(&layout, &left, 6);
            prop_assert!(max <= 1.6 * mean + 3.0, "positions: max {} mean {}", max, mean);
        }
    }
}
