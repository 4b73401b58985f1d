//! The plan of a seed: the mounts, what their programs do, and the faults with their times.
//!
//! Everything is drawn before the first event, so that the same seed gives the same run. Half of the plans are without
//! faults: in them every error that a program sees must have its reason in what other programs did.

use crate::plan::Rng;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection of a mount breaks.
    Break(usize),
    /// The messages of a mount wait for so long, ms.
    CutOff(usize, u64),
    /// The process of a mount is killed (or its machine loses power); a new one starts on the same spool after so long, ms.
    Kill {
        /// The mount.
        mount: usize,
        /// The machine loses power.
        power_loss: bool,
        /// Time until the next process.
        back_ms: u64,
    },
    /// The manager's process is killed.
    KillManager,
    /// It starts again.
    StartManager,
    /// The next operations of a spool's disk fail.
    FailSpool(usize),
    /// A spool's disk has no space left.
    FillSpool(usize),
    /// A spool's disk works again.
    MendSpool(usize),
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Number of mounts.
    pub mounts: usize,
    /// Operations of each program.
    pub operations: usize,
    /// Names in a directory.
    pub names: u64,
    /// Longest ordinary delay of a message, µs.
    pub max_delay_us: u64,
    /// Percentage of messages that take twenty times as long.
    pub slow_percent: u64,
    /// Longest pause of a program between two operations, ms.
    pub pause_ms: u64,
    /// Limit of a spool, bytes.
    pub spool_bytes: u64,
    /// (ms from the start, what).
    pub faults: Vec<(u64, Fault)>,
}

/// Faults happen within this time, ms.
const FAULTS_WITHIN_MS: u64 = 2_500;

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x6d6f_756e_7473);
        let mut plan = Plan {
            seed,
            mounts: rng.between(2, 4) as usize,
            operations: rng.between(25, 60) as usize,
            names: rng.between(2, 5),
            max_delay_us: *rng.pick(&[200, 2_000, 8_000]),
            slow_percent: *rng.pick(&[0, 3, 10]),
            pause_ms: *rng.pick(&[2, 20, 80]),
            spool_bytes: *rng.pick(&[4 << 10, 64 << 10]),
            faults: Vec::new(),
        };
        if rng.percent(50) {
            plan.draw_faults(&mut rng);
        }
        plan
    }

    fn draw_faults(&mut self, rng: &mut Rng) {
        for _ in 0..rng.between(1, 4) {
            let (at, mount) = (rng.between(1, FAULTS_WITHIN_MS), rng.between(0, self.mounts as u64 - 1) as usize);
            match rng.between(0, 9) {
                0..=2 => self.faults.push((at, Fault::Break(mount))),
                3 | 4 => self.faults.push((at, Fault::CutOff(mount, rng.between(50, 4_500)))),
                5 | 6 => {
                    let (power_loss, back_ms) = (rng.percent(40), rng.between(1, 1_500));
                    self.faults.push((at, Fault::Kill { mount, power_loss, back_ms }));
                }
                7 => {
                    self.faults.push((at, Fault::KillManager));
                    self.faults.push((at + rng.between(1, 1_000), Fault::StartManager));
                }
                8 => {
                    self.faults.push((at, Fault::FailSpool(mount)));
                    self.faults.push((at + rng.between(1, 800), Fault::MendSpool(mount)));
                }
                _ => {
                    self.faults.push((at, Fault::FillSpool(mount)));
                    self.faults.push((at + rng.between(1, 800), Fault::MendSpool(mount)));
                }
            }
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Whether nothing fails in it.
    pub fn is_calm(&self) -> bool {
        self.faults.is_empty()
    }
}
