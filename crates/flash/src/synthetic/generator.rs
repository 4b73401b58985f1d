//! Draws the requests of a synthetic trace.

use super::PAGE;
use super::addresses::{Addresses, Place};
use super::draw::{Counted, Zipf, uniform};
use super::profile::Profile;
use crate::histogram::Histogram;
use crate::ssd::Op;
use crate::trace::Request;
use std::collections::HashMap;
use tessera_disk::SplitMix64;

/// What a trace is to be like; what is `None` is as in the trace that it is fitted to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Requests.
    pub requests: u64,
    /// Equal seeds give equal traces.
    pub seed: u64,
    /// Share of reads.
    pub reads: Option<f64>,
    /// Share of requests that begin where the one before them ended.
    pub sequential: Option<f64>,
    /// Share of the reads that belong to a correlated group.
    pub correlated: Option<f64>,
    /// Pages of a group; they are read one after the other.
    pub group: u32,
    /// Groups.
    pub groups: u32,
    /// Exponent of a Zipf distribution of groups; 0: all are read equally often.
    pub group_skew: f64,
    /// Bytes in which the groups lie; `None`: all that are touched.
    pub cluster: Option<u64>,
    /// Exponent of a Zipf distribution of pages, in place of reuse distances.
    pub skew: Option<f64>,
    /// Bytes that are touched, where no trace says which.
    pub footprint: u64,
    /// Mean bytes of a read, and of a write.
    pub sizes: [Option<u64>; 2],
    /// Mean time between arrivals, in ns.
    pub gap: Option<u64>,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            requests: 1_000_000,
            seed: 1,
            reads: None,
            sequential: None,
            correlated: None,
            group: 8,
            groups: 1000,
            group_skew: 0.0,
            cluster: None,
            skew: None,
            footprint: 1 << 30,
            sizes: [None; 2],
            gap: None,
        }
    }
}

/// Why a trace cannot be made. Each message names the way out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Nothing to fit to.
    #[error("the trace has no reads or writes to fit to; name another one, or none and state the shares")]
    Empty,
    /// Sequential and correlated requests are more than all.
    #[error(
        "{sequential:.1} % of the requests sequential and {correlated:.1} % correlated are more than all; lower one of the two"
    )]
    Shares {
        /// Percent.
        sequential: f64,
        /// Percent.
        correlated: f64,
    },
    /// Requests that are larger than what they are to touch.
    #[error(
        "requests of {bytes} bytes on average are larger than the {touched} bytes that are touched; choose smaller ones, or a larger footprint"
    )]
    Size {
        /// Mean bytes.
        bytes: u64,
        /// Bytes of all that is touched.
        touched: u64,
    },
    /// A group without pages.
    #[error("correlated groups need at least two pages and at least one group, not {group} pages and {groups} groups")]
    Groups {
        /// Pages.
        group: u32,
        /// Groups.
        groups: u32,
    },
}

/// The shares that a generator follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Share of reads.
    pub reads: f64,
    /// Share of requests that begin where the one before them ended.
    pub sequential: f64,
    /// Share of the reads that belong to a correlated group.
    pub correlated: f64,
}

/// Draws requests; it is an iterator over them.
#[derive(Debug)]
pub struct Generator {
    rng: SplitMix64,
    left: u64,
    shares: Shares,
    /// Share of reads among requests that are not correlated.
    reads: f64,
    /// Probability of a sequential request among those.
    sequential: f64,
    /// Probability that a group begins instead of another request.
    begins: f64,
    sizes: [Counted<u64>; 2],
    /// What drawn sizes and gaps are multiplied by.
    scale: [f64; 2],
    gaps: Counted<u64>,
    gap_scale: f64,
    addresses: Addresses,
    groups: Vec<Vec<Place>>,
    by_group: Zipf,
    /// The rest of the group that is being read, backwards.
    group: Vec<Place>,
    correlated: u64,
    at: f64,
    last: Place,
    ends: HashMap<u64, u64>,
}

impl Generator {
    /// A generator of a trace like the one that was measured, except for what the plan states; without a profile, of
    /// reads and writes of a page at places of equal probability, one each ms, except for what the plan states.
    ///
    /// # Errors
    /// The plan cannot be followed.
    pub fn new(plan: &Plan, profile: Option<&Profile>) -> Result<Generator, PlanError> {
        if profile.is_some_and(|profile| profile.requests() == 0) {
            return Err(PlanError::Empty);
        }
        let fitted = |of: fn(&Profile) -> f64| profile.map(of);
        let shares = Shares {
            reads: plan.reads.or(fitted(Profile::read_share)).unwrap_or(0.5),
            sequential: plan.sequential.or(fitted(Profile::sequential_share)).unwrap_or(0.0),
            correlated: plan.correlated.or_else(|| fitted(Profile::correlated_share)).unwrap_or(0.0),
        };
        let correlated = shares.reads * shares.correlated;
        if shares.sequential + correlated > 1.0 + 1e-9 {
            return Err(PlanError::Shares { sequential: shares.sequential * 100.0, correlated: correlated * 100.0 });
        }
        if correlated > 0.0 && (plan.group < 2 || plan.groups == 0) {
            return Err(PlanError::Groups { group: plan.group, groups: plan.groups });
        }
        let addresses = match profile {
            Some(profile) => Addresses::fitted(profile, plan.skew),
            None => Addresses::skewed(plan.footprint, plan.skew.unwrap_or(0.0)),
        };
        let touched = addresses.bytes();
        if let Some(bytes) = plan.sizes.into_iter().flatten().find(|bytes| *bytes > touched) {
            return Err(PlanError::Size { bytes, touched });
        }
        let mut rng = SplitMix64::new(plan.seed);
        let others = (1.0 - correlated).max(f64::MIN_POSITIVE);
        let groups = if correlated > 0.0 { plan.groups } else { 0 };
        let cluster = addresses.cluster(&mut rng, plan.cluster);
        let mut group = || (0..plan.group).map(|_| addresses.page_in(&mut rng, &cluster)).collect();
        let groups = (0..groups).map(|_| group()).collect();
        let mean = |op: Op| profile.map_or(PAGE as f64, |p| p.mean_size(p.sized_as(op))).max(1.0);
        let scale = |op: Op| plan.sizes[op as usize].map_or(1.0, |bytes| bytes as f64 / mean(op));
        // Requests that all come at once have no times between them that could be made longer.
        let gaps = profile.map(|p| &p.gaps).filter(|gaps| plan.gap.is_none() || gaps.sum() > 0);
        let gap = gaps.map_or(1e6, Histogram::mean);
        Ok(Generator {
            rng,
            left: plan.requests,
            reads: (shares.reads - correlated) / others,
            sequential: (shares.sequential / others).min(1.0),
            begins: correlated / (f64::from(plan.group) * others + correlated),
            shares,
            sizes: [Op::Read, Op::Write].map(|op| sizes(profile, op)),
            scale: [scale(Op::Read), scale(Op::Write)],
            gaps: Counted::new(gaps.into_iter().flat_map(Histogram::counts)),
            gap_scale: plan.gap.map_or(1.0, |ns| ns as f64 / gap),
            addresses,
            groups,
            by_group: Zipf::new(u64::from(plan.groups), plan.group_skew),
            group: Vec::new(),
            correlated: 0,
            at: 0.0,
            last: (0, 0),
            ends: HashMap::new(),
        })
    }

    /// What the trace is to have.
    pub fn shares(&self) -> Shares {
        self.shares
    }

    /// Reads so far that belong to a correlated group.
    pub fn correlated(&self) -> u64 {
        self.correlated
    }

    /// Bytes of a request: whole sectors, at least one. What rounding takes from one is as likely to be given to another.
    fn size(&mut self, op: Op) -> u64 {
        let bytes = self.sizes[op as usize].draw(&mut self.rng).unwrap_or(PAGE);
        let scale = self.scale[op as usize];
        if scale == 1.0 {
            return bytes;
        }
        let sectors = bytes as f64 * scale / 512.0 + uniform(&mut self.rng);
        (sectors as u64).clamp(1, self.addresses.bytes() / 512) * 512
    }

    fn other(&mut self) -> (Op, Place, u64) {
        let op = if uniform(&mut self.rng) < self.reads { Op::Read } else { Op::Write };
        let bytes = self.size(op);
        if uniform(&mut self.rng) < self.sequential {
            let device = self.last.0;
            let next = self.ends.get(&device).copied().unwrap_or(0);
            if self.addresses.holds(device, next + bytes) {
                return (op, (device, next), bytes);
            }
        }
        (op, self.addresses.draw(&mut self.rng, bytes), bytes)
    }

    fn draw(&mut self) -> (Op, Place, u64) {
        if self.group.is_empty() && uniform(&mut self.rng) < self.begins {
            let at = self.by_group.draw(&mut self.rng) as usize;
            self.group = self.groups[at].iter().rev().copied().collect();
        }
        match self.group.pop() {
            Some(place) => {
                self.correlated += 1;
                (Op::Read, place, self.size(Op::Read))
            }
            None => self.other(),
        }
    }
}

fn sizes(profile: Option<&Profile>, op: Op) -> Counted<u64> {
    let sizes = profile.into_iter().flat_map(|p| &p.sizes[p.sized_as(op) as usize]);
    Counted::new(sizes.map(|(bytes, count)| (*bytes, *count)))
}

impl Iterator for Generator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        self.left = self.left.checked_sub(1)?;
        let (op, place, bytes) = self.draw();
        let place = self.addresses.clip(place, bytes);
        let at = self.at as u64;
        self.at += self.gaps.draw(&mut self.rng).unwrap_or(1_000_000) as f64 * self.gap_scale;
        self.addresses.touch(place);
        self.last = place;
        self.ends.insert(place.0, place.1 + bytes);
        Some(Request { at, op, device: place.0, offset: place.1, bytes })
    }
}
