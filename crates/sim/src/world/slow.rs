//! Processes and disks that take longer. A slow one handles its events one after the other, each for some time, so that events
//! queue up before it.

use super::*;
use crate::plan::Slowness;

/// Longest queue before a slow process or disk, in time: beyond it events come in bursts.
const BACKLOG_NS: i64 = 5_000 * MS;

/// What is slow of a process, and until when it is busy.
#[derive(Default)]
pub(super) struct Slow {
    slowness: Slowness,
    process_free_ns: i64,
    log_free_ns: i64,
}

impl World {
    /// A process, or its disk, takes so many times as long from now on.
    pub(super) fn slow_down(&mut self, who: Actor, slowness: Slowness) {
        self.group.note("slow processes and disks");
        match slowness == Slowness::default() {
            true => drop(self.slow.remove(&who)),
            false => self.slow.entry(who).or_default().slowness = slowness,
        }
    }

    /// The event, if it happens now. A slow process handles it later.
    pub(super) fn in_turn(&mut self, what: Event) -> Option<Event> {
        if let Event::Late(what) = what {
            return Some(*what);
        }
        if self.slow.is_empty() {
            return Some(what);
        }
        let Some(actor) = self.receiver(&what).filter(|actor| self.slow.contains_key(actor)) else { return Some(what) };
        let (sync_us, step_us) = (self.rng.between(50, 4_000), self.rng.between(5, 20));
        let slow = self.slow.get_mut(&actor).expect("it is slow");
        let (free_ns, cost_us) = match (writes_log(&what), slow.slowness) {
            (true, Slowness { disk: 2.., .. }) => (&mut slow.log_free_ns, sync_us * slow.slowness.disk),
            (_, Slowness { process: 2.., .. }) => (&mut slow.process_free_ns, step_us * slow.slowness.process),
            _ => return Some(what),
        };
        let turn_ns = (*free_ns).max(self.now_ns) + cost_us as i64 * 1_000;
        *free_ns = turn_ns.min(self.now_ns + BACKLOG_NS);
        let turn_ns = *free_ns;
        self.push(turn_ns, Event::Late(Box::new(what)));
        None
    }

    /// How long an operation of a node's disk takes that usually takes so many µs, in ns.
    pub(super) fn disk_ns(&mut self, who: Actor, least_us: u64, most_us: u64) -> i64 {
        let times = self.slow.get(&who).map_or(1, |slow| slow.slowness.disk.max(1));
        (self.rng.between(least_us, most_us) * times) as i64 * 1_000
    }
}

/// Whether a peer of the group syncs its log before it answers.
fn writes_log(what: &Event) -> bool {
    matches!(what, Event::Deliver(Envelope { content: Message::Request { kind: Kind::Consensus, .. }, .. }))
}
