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
    /// What a mount says next of its locks arrives late, after the manager has led anew.
    DelayClaim(usize),
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
    /// As `Kill`, when the mount's next commit reaches the manager.
    KillAtCommit {
        /// The mount.
        mount: usize,
        /// The manager carries the commit out.
        done: bool,
        /// The machine loses power.
        power_loss: bool,
        /// Time until the next process.
        back_ms: u64,
    },
    /// The manager's process is killed.
    KillManager,
    /// It starts again.
    StartManager,
    /// It loses the lead and gets it again, in the same process.
    LeadAnew,
    /// The next operations of a spool's disk fail.
    FailSpool(usize),
    /// A spool's disk fails when the mount's next process starts, for so long, ms.
    FailSpoolAtStart(usize, u64),
    /// A spool's disk has no space left.
    FillSpool(usize),
    /// A spool's disk works again.
    MendSpool(usize),
}

/// What programs do more often than else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Theme {
    /// Nothing.
    #[default]
    Mixed,
    /// They lock files, and mounts are cut off for longer than locks last.
    Locks,
    /// They write files of the spool, and mounts die with logs that are not pushed.
    Spool,
    /// They make files and directories.
    Creates,
}

impl Theme {
    /// Every theme.
    pub const ALL: [Theme; 4] = [Theme::Mixed, Theme::Locks, Theme::Spool, Theme::Creates];
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What programs do.
    pub theme: Theme,
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
        let mut rng = Rng::new(seed ^ 0x0074_6865_6d65);
        Plan::themed(seed, *rng.pick(&[Theme::Mixed, Theme::Mixed, Theme::Locks, Theme::Spool, Theme::Creates]))
    }

    /// The plan of a seed, with programs that do this more often.
    pub fn themed(seed: u64, theme: Theme) -> Plan {
        let mut rng = Rng::new(seed ^ 0x6d6f_756e_7473);
        let mut plan = Plan {
            seed,
            theme,
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
        match plan.theme {
            Theme::Locks if rng.percent(70) => plan.draw_lost_locks(&mut rng),
            Theme::Spool if rng.percent(70) => plan.draw_lost_mounts(&mut rng),
            _ => {}
        }
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    fn draw_faults(&mut self, rng: &mut Rng) {
        for _ in 0..rng.between(1, 4) {
            let (at, mount) = (rng.between(1, FAULTS_WITHIN_MS), rng.between(0, self.mounts as u64 - 1) as usize);
            match rng.between(0, 10) {
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
                8 => self.faults.push((at, Fault::LeadAnew)),
                9 => {
                    self.faults.push((at, Fault::FailSpool(mount)));
                    self.faults.push((at + rng.between(1, 800), Fault::MendSpool(mount)));
                }
                _ => {
                    self.faults.push((at, Fault::FillSpool(mount)));
                    self.faults.push((at + rng.between(1, 800), Fault::MendSpool(mount)));
                }
            }
        }
    }

    fn mount(&self, rng: &mut Rng) -> usize {
        rng.between(0, self.mounts as u64 - 1) as usize
    }

    /// A mount is cut off for longer than its locks last, while the other programs go on.
    fn draw_lost_locks(&mut self, rng: &mut Rng) {
        (self.names, self.pause_ms, self.operations) = (1, rng.between(60, 150), rng.between(60, 90) as usize);
        let mount = self.mount(rng);
        self.faults.push((rng.between(100, 2_000), Fault::CutOff(mount, rng.between(3_200, 4_500))));
        if rng.percent(40) {
            self.faults.push((rng.between(3_000, 9_000), Fault::LeadAnew));
        }
        if rng.percent(40) {
            // A mount begins to use locks early.
            let within_ms = *rng.pick(&[1, 200, 3_000]);
            self.faults.push((rng.between(0, within_ms), Fault::DelayClaim(self.mount(rng))));
        }
    }

    /// A mount dies while files wait in its spool: because it was cut off, or before it hears of its commit.
    fn draw_lost_mounts(&mut self, rng: &mut Rng) {
        self.names = rng.between(1, 2);
        let (mount, at) = (self.mount(rng), rng.between(50, 1_000));
        let (power_loss, back_ms) = (rng.percent(60), rng.between(1, 800));
        if rng.percent(75) {
            self.pause_ms = 2;
            let done = rng.percent(50);
            self.faults.push((at, Fault::KillAtCommit { mount, done, power_loss, back_ms }));
            // The log of that commit waits.
            if !done && rng.percent(70) {
                self.faults.push((at, Fault::FailSpoolAtStart(mount, rng.between(1, 500))));
                self.faults.push((at + back_ms + 1_000, Fault::MendSpool(mount)));
            }
        } else {
            self.faults.push((at, Fault::CutOff(mount, rng.between(500, 2_000))));
            self.faults.push((at + rng.between(50, 500), Fault::Kill { mount, power_loss, back_ms }));
        }
    }

    /// Whether nothing fails in it.
    pub fn is_calm(&self) -> bool {
        self.faults.is_empty()
    }
}
