//! The manager's two times. The *cluster clock* counts the time that the group is led: every logged deadline and every age is measured
//! by it. The *time of day* dates files. Both are recorded with each entry of the log, so that the next leader goes on from there.

use tessera_failpoint as failpoint;
use tessera_wire::{Code, Error};

/// Most time that passes between two events for the cluster clock: who was stopped longer served nobody meanwhile.
const STEP_NS: i64 = 10_000_000_000;

/// Both times of a batch of commands, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Time {
    /// The cluster clock. It began as the time of day at which the cluster was founded; it never goes back and never jumps.
    pub now_ns: i64,
    /// The time of day, in ns since 1970; it never goes back.
    pub wall_ns: i64,
}

/// The clock of a manager that leads. The shell's time passes as the machine's time since boot does; nobody can set it.
#[derive(Debug, Clone)]
pub struct Clock {
    /// The times now.
    pub time: Time,
    shell_ns: i64,
    /// The wall clock as it was last read, minus the shell's time.
    wall_ahead_ns: i64,
    jump_max_ns: i64,
    /// The wall clock has jumped further than that, and is not followed.
    jumped: bool,
}

impl Clock {
    /// Goes on from the time of the last entry; `None`: there is none.
    ///
    /// # Errors
    /// The wall clock is further than `jump_max_ns` from the last entry's time of day.
    pub fn resume(last: Option<Time>, shell_ns: i64, wall_ns: i64, jump_max_ns: i64) -> Result<Clock, Error> {
        let time = last.unwrap_or(Time { now_ns: wall_ns, wall_ns });
        let jump_ns = wall_ns.saturating_sub(time.wall_ns);
        if jump_ns.saturating_abs() > jump_max_ns {
            return Err(Error::new(Code::Unavailable, implausible(jump_ns, jump_max_ns)));
        }
        Ok(Clock { time, shell_ns, wall_ahead_ns: wall_ns.saturating_sub(shell_ns), jump_max_ns, jumped: false })
    }

    /// Time has passed. A wall clock that is behind is waited for at half speed.
    pub fn advance(&mut self, shell_ns: i64) {
        let passed_ns = shell_ns.saturating_sub(self.shell_ns).max(0);
        self.shell_ns = shell_ns;
        self.time.now_ns += passed_ns.min(STEP_NS);
        let wall_ns = self.shell_ns.saturating_add(self.wall_ahead_ns);
        self.time.wall_ns = wall_ns.max(self.time.wall_ns + passed_ns / 2);
    }

    /// The wall clock was read, at `shell_ns`, which may be later than the last [`Clock::advance`].
    pub fn note_wall(&mut self, shell_ns: i64, wall_ns: i64) {
        let jump_ns = wall_ns.saturating_sub(self.time.wall_ns);
        let jumped = jump_ns.saturating_abs() > self.jump_max_ns;
        if jumped && !self.jumped {
            tracing::error!("{}", implausible(jump_ns, self.jump_max_ns));
        }
        self.jumped = jumped;
        if !jumped {
            self.wall_ahead_ns = wall_ns.saturating_sub(shell_ns);
        }
        if failpoint::is_active("manager.clock_follows_wall") {
            self.time.now_ns = self.time.now_ns.max(wall_ns);
        }
    }
}

fn implausible(jump_ns: i64, jump_max_ns: i64) -> String {
    let hours = |ns: i64| ns.saturating_abs() / 3_600_000_000_000;
    let way = if jump_ns < 0 { "behind" } else { "ahead of" };
    format!(
        "this machine's clock is {} h {way} the last change of the metadata, and {} h are plausible: set it right; if it is right, start \
         this manager once with a larger max_clock_jump_ms",
        hours(jump_ns),
        hours(jump_max_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const DAY: i64 = 86_400 * S;

    fn clock(last: Time, wall_ns: i64) -> Clock {
        Clock::resume(Some(last), 5 * S, wall_ns, 30 * DAY).unwrap()
    }

    #[test]
    fn the_cluster_clock_counts_served_time() {
        let last = Time { now_ns: 100 * DAY, wall_ns: 200 * DAY };
        let mut clock = clock(last, 210 * DAY);
        assert_eq!(clock.time, last, "nothing has passed while nobody led");
        clock.advance(6 * S);
        assert_eq!(clock.time, Time { now_ns: 100 * DAY + S, wall_ns: 210 * DAY + S });
        // The process was stopped for a day.
        clock.advance(6 * S + DAY);
        assert_eq!(clock.time, Time { now_ns: 100 * DAY + 11 * S, wall_ns: 211 * DAY + S });
        clock.advance(0);
        assert_eq!(clock.time.now_ns, 100 * DAY + 11 * S, "time does not go back");
    }

    #[test]
    fn the_time_of_day_follows_small_steps_and_never_goes_back() {
        let mut clock = clock(Time { now_ns: 0, wall_ns: 200 * DAY }, 200 * DAY);
        clock.note_wall(5 * S, 200 * DAY + 60 * S);
        clock.advance(6 * S);
        assert_eq!(clock.time.wall_ns, 200 * DAY + 61 * S);
        clock.note_wall(6 * S, 200 * DAY + S);
        clock.advance(26 * S);
        assert_eq!(clock.time.wall_ns, 200 * DAY + 71 * S, "half speed");
        clock.advance(5 * S + 200 * S);
        assert_eq!(clock.time.wall_ns, 200 * DAY + 200 * S, "it has waited long enough");
        assert_eq!(clock.time.now_ns, S + 10 * S + 10 * S);
    }

    /// An idle manager reads the wall clock some time after it last advanced: that time is not counted twice.
    #[test]
    fn the_time_of_day_is_not_ahead_of_the_wall_clock() {
        let mut clock = clock(Time { now_ns: 0, wall_ns: 200 * DAY }, 200 * DAY);
        for second in 1..5 {
            clock.note_wall((5 + second) * S, 200 * DAY + second * S);
            clock.advance((5 + second) * S);
            assert_eq!(clock.time.wall_ns, 200 * DAY + second * S);
        }
    }

    #[test]
    fn implausible_jumps_are_refused() {
        let last = Time { now_ns: 7, wall_ns: 200 * DAY };
        for wall_ns in [0, 169 * DAY, 231 * DAY, i64::MAX] {
            let refused = Clock::resume(Some(last), 5 * S, wall_ns, 30 * DAY).unwrap_err();
            assert!(refused.message.contains("max_clock_jump_ms"), "{refused:?}");
        }
        let mut clock = clock(last, 200 * DAY);
        for wall_ns in [0, 300 * DAY] {
            clock.note_wall(6 * S, wall_ns);
            clock.advance(6 * S);
            assert_eq!(clock.time.wall_ns, 200 * DAY + S);
        }
    }
}
