//! Faults that slow, delay or take back rather than destroy: slow disks and processes, suspends, steps of wall clocks, isolated
//! leaders, managers' directories that are rolled back or rot. They have random numbers of their own.

use super::{Fault, ManagerFault, Plan, Rng, Slowness, Who};
use crate::network::Actor;

impl Plan {
    /// Draws which of these faults occur, and when.
    pub(super) fn draw_trouble(&mut self) {
        let rng = &mut Rng::new(self.seed ^ 0x7208_b1e5);
        if rng.percent(25) {
            self.draw_slowness(rng);
        }
        if rng.percent(10) {
            self.draw_limping(rng);
        }
        if rng.percent(10) {
            let client = rng.between(0, self.clients as u64 - 1) as usize;
            let at = self.moment(rng);
            let back = at + rng.between(100, 9_000);
            self.faults.extend([(at, Fault::PauseClient(client)), (back, Fault::ResumeClient(client))]);
        }
        if rng.percent(20) {
            self.draw_walls(rng);
        }
        if rng.percent(20) {
            self.draw_isolation(rng);
        }
        if rng.percent(15) {
            self.draw_damaged_managers(rng);
        }
        if rng.percent(15) {
            self.draw_snapshots(rng);
        }
    }

    fn draw_slowness(&mut self, rng: &mut Rng) {
        for _ in 0..rng.between(1, 2) {
            let (at, who) = (self.moment(rng), self.peer(rng, 25));
            let slowness = draw_slowness(rng);
            let end = at + rng.between(500, 8_000);
            self.faults.extend([(at, Fault::Slow(who, slowness)), (end, Fault::Slow(who, Slowness::default()))]);
        }
    }

    fn draw_limping(&mut self, rng: &mut Rng) {
        let (at, node) = (self.moment(rng), self.node(rng));
        let times = rng.between(3, 12);
        self.limp(node, at, times, rng);
    }

    /// A node stops and goes on, again and again.
    fn limp(&mut self, node: usize, at: u64, times: u64, rng: &mut Rng) {
        let mut at = at;
        for _ in 0..times {
            let back = at + rng.between(20, 600);
            self.faults.extend([(at, Fault::PauseNode(node)), (back, Fault::ResumeNode(node))]);
            at = back + rng.between(20, 400);
        }
    }

    /// One node is slow from the start to the end.
    pub(super) fn draw_one_slow(&mut self, rng: &mut Rng) {
        (self.probes, self.endless_reader) = (true, false);
        let node = self.node(rng);
        self.slow_node = Some(node);
        let times = |rng: &mut Rng, most| *rng.pick(&[10, 30, 100, 300, 1_000][..most]);
        let slowness = match rng.between(0, 3) {
            0 | 1 => Slowness { process: 1, disk: times(rng, 5) },
            2 => Slowness { process: times(rng, 4), disk: 1 },
            _ => return self.limp(node, 1, self.quiesce_at_ms / 400, rng),
        };
        self.faults.push((1, Fault::Slow(Actor::Node(node), slowness)));
    }

    /// Wall clocks are up to two weeks wrong, so that managers follow them (`max_clock_jump_ms`).
    pub(super) fn draw_walls(&mut self, rng: &mut Rng) {
        for _ in 0..rng.between(1, 4) {
            let by_ms = rng.between(100, 14 * 86_400_000) as i64;
            let (at, manager) = (self.moment(rng), self.manager(rng));
            self.faults.push((at, Fault::SetWall(manager, if rng.percent(50) { by_ms } else { -by_ms })));
        }
    }

    /// Sets wall clocks of managers in a plan that is drawn.
    pub fn step_walls(&mut self) {
        let rng = &mut Rng::new(self.seed ^ 0x3a11);
        self.draw_walls(rng);
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Leaders that do not know that they lead no more, while clients ask them.
    fn draw_isolation(&mut self, rng: &mut Rng) {
        self.probes = true;
        for _ in 0..rng.between(1, 4) {
            let who = if rng.percent(85) { Who::Leader } else { Who::Index(self.manager(rng)) };
            let (at, ms) = (self.moment(rng), rng.between(800, 5_000));
            match rng.percent(50) {
                true => self.faults.push((at, Fault::Manager { who, what: ManagerFault::Pause, back_ms: ms })),
                false => self.faults.extend([(at, Fault::Isolate(who)), (at + ms, Fault::HealPartitions)]),
            }
        }
    }

    /// A manager's directory is taken back, or rots.
    fn draw_damaged_managers(&mut self, rng: &mut Rng) {
        for _ in 0..rng.between(1, 2) {
            let (at, manager, back_ms) = (self.moment(rng), self.manager(rng), rng.between(1, 3_000));
            let what = match rng.percent(65) {
                true => ManagerFault::RollBack,
                false => ManagerFault::Rot,
            };
            self.faults.push((rng.between(0, at), Fault::BackUp(manager)));
            self.faults.push((at, Fault::Manager { who: Who::Index(manager), what, back_ms }));
        }
    }

    /// Managers fall behind what the group's logs still hold, and come back with old databases.
    fn draw_snapshots(&mut self, rng: &mut Rng) {
        self.snapshots_often = true;
        for _ in 0..rng.between(2, 5) {
            let who = if rng.percent(40) { Who::Leader } else { Who::Index(self.manager(rng)) };
            let what = match rng.between(0, 99) {
                0..=59 => ManagerFault::PowerOff,
                60..=79 => ManagerFault::Lose,
                _ => ManagerFault::Kill,
            };
            let (at, back_ms) = (self.moment(rng), rng.between(1, 4_000));
            self.faults.push((at, Fault::Manager { who, what, back_ms }));
        }
    }
}

fn draw_slowness(rng: &mut Rng) -> Slowness {
    let times = |rng: &mut Rng| *rng.pick(&[10, 30, 100, 300, 1_000]);
    match rng.percent(60) {
        true => Slowness { process: 1, disk: times(rng) },
        false => Slowness { process: times(rng), disk: 1 },
    }
}
