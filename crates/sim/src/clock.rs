//! The clock of each actor: it has an offset and a drift, and may be set.

use crate::network::Actor;
use crate::plan::Rng;
use std::collections::BTreeMap;

/// A clock as a line over true time.
#[derive(Debug, Clone, Copy, Default)]
struct Clock {
    offset_ns: i64,
    /// Parts per million that it runs fast.
    fast_ppm: i64,
}

/// The clocks of all actors. An actor without an entry has the true time.
#[derive(Debug, Clone, Default)]
pub struct Clocks {
    start_ns: i64,
    clocks: BTreeMap<Actor, Clock>,
}

impl Clocks {
    /// Clocks that show the true time, which begins at `start_ns`.
    pub fn new(start_ns: i64) -> Clocks {
        Clocks { start_ns, clocks: BTreeMap::new() }
    }

    /// Draws each clock's offset (within a day) and drift (within 3 %).
    pub fn draw(&mut self, actors: impl Iterator<Item = Actor>, rng: &mut Rng) {
        const DAY_MS: u64 = 86_400_000;
        for actor in actors {
            let offset_ns = (rng.between(0, 2 * DAY_MS) as i64 - DAY_MS as i64) * 1_000_000;
            let fast_ppm = rng.between(0, 60_000) as i64 - 30_000;
            self.clocks.insert(actor, Clock { offset_ns, fast_ppm });
        }
    }

    /// Sets a clock forward by `by_ms`, or back.
    pub fn set(&mut self, actor: Actor, by_ms: i64) {
        self.clocks.entry(actor).or_default().offset_ns += by_ms * 1_000_000;
    }

    /// What the actor's clock shows at a true time.
    pub fn of(&self, actor: Actor, true_ns: i64) -> i64 {
        let Some(clock) = self.clocks.get(&actor) else { return true_ns };
        let passed = true_ns - self.start_ns;
        true_ns + clock.offset_ns + ((i128::from(passed) * i128::from(clock.fast_ppm)) / 1_000_000) as i64
    }

    /// The true time at which the actor's clock will show `local_ns`; rounded up.
    pub fn true_ns(&self, actor: Actor, local_ns: i64) -> i64 {
        let Some(clock) = self.clocks.get(&actor) else { return local_ns };
        let passed = i128::from(local_ns.saturating_sub(clock.offset_ns).saturating_sub(self.start_ns));
        let passed = passed * 1_000_000 / i128::from(1_000_000 + clock.fast_ppm);
        self.start_ns.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX / 2)).saturating_add(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_comes_back_when_it_is_due() {
        let mut clocks = Clocks::new(1_000_000_000);
        clocks.draw((0..50).map(Actor::Node), &mut Rng::new(7));
        for (actor, true_ns) in (0..50).map(Actor::Node).zip((0..50).map(|i| 2_000_000_000 + i * 7_777_777_777)) {
            let local = clocks.of(actor, true_ns);
            let back = clocks.true_ns(actor, local);
            assert!((true_ns..true_ns + 2_000).contains(&back), "{actor:?}: {true_ns} {back}");
            assert!(clocks.of(actor, back) >= local);
        }
        let before = clocks.of(Actor::Manager(0), 5);
        clocks.set(Actor::Manager(0), -60_000);
        assert_eq!(clocks.of(Actor::Manager(0), 5), before - 60_000_000_000);
        assert_eq!(clocks.true_ns(Actor::Manager(0), i64::MAX), clocks.true_ns(Actor::Manager(0), i64::MAX));
    }
}
