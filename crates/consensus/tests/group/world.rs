//! Hosts, a network between them, and faults.

use crate::host::{Host, State};
use crate::oracle::{Counts, Oracle};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tessera_consensus::plan::{self, Candidate};
use tessera_consensus::{Input, Output, Peer, PeerError};
use tessera_disk::{CrashKind, Fault, SimDisk, SplitMix64};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::PeerKind;
use tessera_wire::rpc::{Answer, Call, Peer as Address};
use tessera_wire::{Code, Error};

const TICK_MS: u64 = 100;
/// Faults end here; then the group must recover.
const CALM_MS: u64 = 90_000;
const END_MS: u64 = 150_000;

enum Event {
    Tick(usize),
    Client,
    Fault,
    Plan,
    Frame { from: usize, life: u64, to: usize, call: Call },
    Answer { to: usize, life: u64, answer: Answer },
}

/// What a seed draws once.
struct Nature {
    loss_percent: u64,
    delay_ms: u64,
    crashes: bool,
    cuts: bool,
    rollbacks: bool,
    wipes: bool,
    pauses: bool,
    full: bool,
    fault_every_ms: u64,
}

pub struct World {
    rng: SplitMix64,
    nature: Nature,
    hosts: Vec<Host>,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    now_ms: u64,
    /// Directed pairs that hear nothing.
    cut: BTreeSet<(usize, usize)>,
    /// Nobody can open a connection to it; its own are answered.
    unreached: Option<usize>,
    /// Frames that wait for their answer: (host, token) to the caller.
    asked: BTreeMap<(usize, u64), (usize, u64, u64)>,
    next_frame: u64,
    next_number: u64,
    oracle: Oracle,
    pub trace: Option<Vec<String>>,
    log: bool,
    calm: bool,
    /// When a disk was last lost or rolled back.
    lost_at_ms: u64,
    rolled_back_at_ms: u64,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = SplitMix64::new(seed);
        let mut chance = |percent| rng.below(100) < percent;
        let (crashes, cuts, rollbacks) = (chance(80), chance(60), chance(40));
        let (wipes, pauses, full) = (chance(40), chance(40), chance(30));
        let nature = Nature {
            loss_percent: [0, 0, 2, 10][rng.below(4) as usize],
            delay_ms: [1, 5, 40, 200][rng.below(4) as usize],
            crashes,
            cuts,
            rollbacks,
            wipes,
            pauses,
            full,
            fault_every_ms: [500, 2_000, 6_000][rng.below(3) as usize],
        };
        let managers = 1 + rng.below(3) as usize;
        let hosts = managers + 1 + rng.below(6) as usize;
        let mut world = World {
            nature,
            hosts: Vec::new(),
            events: BTreeMap::new(),
            next_event: 0,
            now_ms: 0,
            cut: BTreeSet::new(),
            unreached: None,
            asked: BTreeMap::new(),
            next_frame: 0,
            next_number: 0,
            oracle: Oracle::default(),
            trace: None,
            log: std::env::var("SIM_LOG").is_ok(),
            calm: false,
            lost_at_ms: 0,
            rolled_back_at_ms: 0,
            rng,
        };
        for name in 0..hosts {
            let kind = if name < managers { PeerKind::Manager } else { PeerKind::Voter };
            let disk = SimDisk::new(world.rng.next_u64());
            world.hosts.push(Host {
                name,
                kind,
                moves: 0,
                disk,
                peer: None,
                life: 0,
                paused_until_ms: 0,
                restart_at_ms: None,
                state: State::default(),
                synced: State::default(),
                backup: None,
                settled_term: 0,
                proposed: Vec::new(),
                reads: Vec::new(),
            });
            let (id, seed) = (world.draw_id(), world.rng.next_u64());
            match name {
                0 => world.hosts[0].found(id, seed),
                _ => world.hosts[name].join(id, seed),
            }
            world.at(TICK_MS, Event::Tick(name));
        }
        world.at(200, Event::Client);
        world.at(300, Event::Plan);
        world.at(5_000, Event::Fault);
        world
    }

    fn draw_id(&mut self) -> u64 {
        self.rng.next_u64() >> 2 | 1
    }

    fn at(&mut self, in_ms: u64, event: Event) {
        self.next_event += 1;
        self.events.insert((self.now_ms + in_ms, self.next_event), event);
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        if self.log || self.trace.is_some() {
            let line = format!("{:>7} {}", self.now_ms, text());
            if self.log {
                println!("{line}");
            }
            self.trace.iter_mut().for_each(|trace| trace.push(line.clone()));
        }
    }

    /// Runs to the end; panics where a promise breaks.
    pub fn run(mut self) -> Counts {
        self.advance_to(CALM_MS);
        self.heal();
        let before = self.oracle.acknowledged;
        self.advance_to(END_MS);
        assert!(self.oracle.acknowledged > before, "all is well for a minute, and nothing is acknowledged");
        let leader = self.hosts.iter().find(|h| h.peer.as_ref().is_some_and(|p| p.standing().leads));
        let leader = leader.expect("all is well, and nobody leads");
        assert_eq!(leader.kind, PeerKind::Manager, "a manager leads in the end");
        let membership = leader.peer.as_ref().map(|p| p.membership().clone()).unwrap_or_default();
        assert!(membership.voters_outgoing.is_empty(), "no change is left half done");
        let hosts = self.hosts.len();
        let managers = self.managers().count();
        let wanted = plan::voters_wanted(hosts, 5).max(managers);
        assert_eq!(membership.voters.len(), wanted, "{hosts} hosts, {managers} managers: {membership:?}");
        for host in self.managers() {
            assert!(host.state.index + 50 > self.oracle.acknowledged, "manager {} lags in the end", host.name);
        }
        self.oracle.counts
    }

    /// Runs without faults; all hosts stop and come back with other addresses, the first manager without its disk. They know the
    /// managers' new addresses, and must find each other.
    pub fn run_moved(mut self) {
        let wanted = plan::voters_wanted(self.hosts.len(), 5).max(self.managers().count());
        if wanted < 3 {
            return; // No majority is left.
        }
        self.heal();
        self.advance_to(20_000);
        assert!(self.all_well() && self.oracle.acknowledged > 0, "the group serves after 20 s");
        let before = self.oracle.acknowledged;
        for host in 0..self.hosts.len() {
            self.hosts[host].stop();
            self.hosts[host].moves += 1;
            self.hosts[host].restart_at_ms = Some(self.now_ms);
        }
        self.lose(0);
        self.hosts[0].restart_at_ms = Some(self.now_ms);
        self.advance_to(60_000);
        assert!(self.oracle.acknowledged > before, "the group serves after everybody has moved");
        let leader = self.hosts.iter().filter_map(|h| h.peer.as_ref()).find(|p| p.standing().leads);
        assert_eq!(leader.map(|leader| leader.membership().voters.len()), Some(wanted), "the new manager is a voter");
    }

    fn managers(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| host.kind == PeerKind::Manager)
    }

    pub fn advance_to(&mut self, end_ms: u64) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > end_ms {
                break;
            }
            let ((at, _), event) = entry.remove_entry();
            self.now_ms = at;
            self.event(event);
        }
        self.now_ms = end_ms;
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Tick(host) => self.tick(host),
            Event::Client => {
                self.client();
                let pause = 20 + self.rng.below(150);
                self.at(pause, Event::Client);
            }
            Event::Plan => {
                (0..self.hosts.len()).for_each(|host| self.plan(host));
                self.at(300, Event::Plan);
            }
            Event::Fault => {
                if !self.calm {
                    self.fault();
                    let pause = 1 + self.rng.below(2 * self.nature.fault_every_ms);
                    self.at(pause, Event::Fault);
                }
            }
            Event::Frame { from, life, to, call } => self.frame(from, life, to, call),
            Event::Answer { to, life, answer } => {
                let wait_ms = self.hosts[to].paused_until_ms.saturating_sub(self.now_ms);
                if self.hosts[to].life != life {
                } else if wait_ms > 0 {
                    self.at(wait_ms, Event::Answer { to, life, answer });
                } else {
                    self.input(to, Input::Answer(answer));
                }
            }
        }
    }

    fn runs(&self, host: usize) -> bool {
        self.hosts[host].peer.is_some() && self.hosts[host].paused_until_ms <= self.now_ms
    }

    fn tick(&mut self, host: usize) {
        // A copy of a snapshot that cannot be written stops nobody; the power is off all the same.
        if self.hosts[host].peer.is_some() && self.hosts[host].disk.is_off() {
            self.power_loss(host);
        }
        if self.hosts[host].restart_at_ms.is_some_and(|at| at <= self.now_ms) {
            self.restart(host);
        }
        if self.runs(host) {
            self.input(host, Input::Tick);
            let h = &mut self.hosts[host];
            let lonely = h.peer.as_ref().is_some_and(|p| p.membership().voters == [p.id()]);
            if lonely {
                h.peer.iter_mut().for_each(|peer| peer.campaign());
                self.outputs(host);
            }
            self.upkeep(host);
        }
        let jitter = self.rng.below(20);
        self.at(TICK_MS - 10 + jitter, Event::Tick(host));
    }

    /// A manager that leads makes snapshots, and every manager's state is synced now and then.
    fn upkeep(&mut self, host: usize) {
        if self.hosts[host].kind != PeerKind::Manager {
            return;
        }
        if self.rng.below(10) == 0 {
            self.hosts[host].synced = self.hosts[host].state.clone();
        }
        let h = &mut self.hosts[host];
        let Some(peer) = h.peer.as_mut() else { return };
        let held = peer.files().held().map_or(0, |held| held.index);
        let lacks = peer.take_lacks_snapshot();
        if peer.standing().leads && (h.state.index > held + 60 || lacks && h.state.index > held) && h.snapshot() {
            self.oracle.counts.note("snapshot made");
            self.say(|| format!("h{host} makes a snapshot"));
        }
    }

    fn client(&mut self) {
        for host in 0..self.hosts.len() {
            let h = &self.hosts[host];
            let leads = h.peer.as_ref().is_some_and(|p| p.standing().leads && p.standing().term == h.settled_term);
            if !self.runs(host) || !leads || h.kind != PeerKind::Manager {
                continue;
            }
            self.next_number += 1;
            let (number, len) = (self.next_number, self.rng.below(60) as usize);
            if self.rng.below(3) == 0 {
                let (floor, index) = (self.oracle.acknowledged, self.hosts[host].state.index);
                let h = &mut self.hosts[host];
                h.reads.push((number, floor, index));
                if failpoint::is_active("consensus.confirms_at_once") {
                    self.confirmed(host, number);
                } else {
                    h.peer.iter_mut().for_each(|peer| _ = peer.confirm(number));
                }
            } else {
                let mut data = number.to_le_bytes().to_vec();
                data.resize(8 + len, 1);
                let h = &mut self.hosts[host];
                let term = h.settled_term;
                if let Some(Ok(index)) = h.peer.as_mut().map(|peer| peer.propose(data.into())) {
                    h.proposed.push((index, term));
                }
                // The outputs so far leave before this host writes, or not at all if it dies now.
                self.outputs(host);
                if self.nature.crashes && !self.calm && !self.nature.rollbacks && self.rng.below(400) == 0 {
                    self.power_loss(host);
                    continue;
                }
                self.hosts[host].peer.iter_mut().for_each(|peer| peer.complete());
            }
            self.outputs(host);
        }
    }

    /// Tells a host who runs, as far as it can know. A leader plans with it.
    fn plan(&mut self, host: usize) {
        if !self.runs(host) {
            return;
        }
        let alive: Vec<bool> = (0..self.hosts.len()).map(|other| self.runs(other)).collect();
        let reachable =
            |other: usize| other == host || !self.cut.contains(&(host, other)) && !self.cut.contains(&(other, host));
        let mut candidates: Vec<Candidate> = Vec::new();
        for (name, other) in self.hosts.iter().enumerate() {
            if let Some(peer) = other.peer.as_ref().filter(|p| p.stopped().is_none()) {
                let is_up = alive[name] && reachable(name);
                candidates.push(Candidate { member: other.member(peer.id()), is_up, must_go: false });
            }
        }
        self.hosts[host].peer.iter_mut().for_each(|peer| peer.set_candidates(candidates.drain(..)));
    }

    fn input(&mut self, host: usize, input: Input) {
        let now_ns = self.now_ms as i64 * 1_000_000;
        if let Some(peer) = &mut self.hosts[host].peer {
            peer.handle(now_ns, input);
        }
        self.outputs(host);
    }

    fn outputs(&mut self, host: usize) {
        while let Some(output) = self.hosts[host].peer.as_mut().and_then(|peer| peer.poll()) {
            match output {
                Output::Call(call) => self.send(host, call),
                Output::Answer { token, result } => self.reply(host, token, result),
                Output::Committed { index, term, data } => self.committed(host, index, term, &data),
                Output::Restore(info) => {
                    self.oracle.counts.note("restored");
                    let h = &mut self.hosts[host];
                    if h.kind == PeerKind::Manager
                        && let Some(peer) = h.peer.take()
                    {
                        let restored = h.restore(peer.files(), &info);
                        h.peer = Some(peer);
                        if restored.is_err() {
                            return self.power_loss(host);
                        }
                        let h = &self.hosts[host];
                        self.oracle.state(host as u64, h.state.index, &h.state.values);
                    }
                }
                Output::Standing(standing) => {
                    self.say(|| format!("h{host} {standing:?}"));
                    if standing.leads {
                        self.oracle.leads(host as u64, standing.term);
                        if self.hosts[host].kind == PeerKind::Voter {
                            self.oracle.counts.note("voter led");
                        }
                    } else {
                        let h = &mut self.hosts[host];
                        (h.settled_term, h.proposed, h.reads) = (0, Vec::new(), Vec::new());
                    }
                }
                Output::Confirmed(number) => self.confirmed(host, number),
                Output::Members => self.oracle.counts.note("members changed"),
                Output::Stopped(error) => self.stopped(host, error),
            }
        }
    }

    fn committed(&mut self, host: usize, index: u64, term: u64, data: &[u8]) {
        if self.trace.is_some() || std::env::var("SIM_COMMITS").is_ok() {
            self.say(|| format!("h{host} commits {index} of term {term}"));
        }
        self.oracle.committed(host as u64, index, term, data);
        let h = &mut self.hosts[host];
        if h.kind == PeerKind::Manager && index > h.state.index {
            h.state.index = index;
            if data.is_empty() {
                let own = h.peer.as_ref().map(|peer| peer.standing()).unwrap_or_default();
                h.settled_term = if own.term == term { term } else { h.settled_term };
            } else {
                h.state.values.push((index, data.to_vec()));
            }
        }
        if h.proposed.iter().any(|&(i, t)| (i, t) == (index, term)) {
            h.proposed.retain(|&(i, _)| i != index);
            self.oracle.acknowledge(index);
        }
        if index.is_multiple_of(20) && self.hosts[host].kind == PeerKind::Manager {
            let h = &self.hosts[host];
            self.oracle.state(host as u64, h.state.index, &h.state.values);
        }
    }

    fn confirmed(&mut self, host: usize, number: u64) {
        let reads = std::mem::take(&mut self.hosts[host].reads);
        let (done, open): (Vec<_>, Vec<_>) = reads.into_iter().partition(|read| read.0 <= number);
        self.hosts[host].reads = open;
        for (number, floor, index) in done {
            self.oracle.counts.note("confirmed");
            assert!(index >= floor, "read {number} at h{host} saw entry {index}, and {floor} had been acknowledged");
        }
    }

    fn stopped(&mut self, host: usize, error: PeerError) {
        self.say(|| format!("h{host} stops: {error}"));
        if matches!(error, PeerError::Forgotten { .. } | PeerError::Outdated) {
            self.oracle.counts.note("rollback found out");
        }
        if self.hosts[host].disk.is_off() {
            return self.power_loss(host);
        }
        assert!(!matches!(error, PeerError::Log(_)), "h{host}'s disk is sound, full or not, and it stops: {error}");
        // Its operator moves the directory away and lets it join again.
        self.lose(host);
        let in_ms = 500 + self.rng.below(3_000);
        self.hosts[host].restart_at_ms = Some(self.now_ms + in_ms);
    }

    fn lose(&mut self, host: usize) {
        self.lost_at_ms = self.now_ms;
        let seed = self.rng.next_u64();
        self.hosts[host].stop();
        self.hosts[host].wipe(seed);
    }

    fn restart(&mut self, host: usize) {
        let (seed, id) = (self.rng.next_u64(), self.draw_id());
        self.hosts[host].restart_at_ms = None;
        self.oracle.counts.note("restart");
        match self.hosts[host].restart(seed) {
            Ok(true) => self.say(|| format!("h{host} restarts")),
            Ok(false) => {
                self.hosts[host].wipe(seed);
                self.hosts[host].join(id, seed);
                self.say(|| format!("h{host} joins as {id:x}"));
            }
            Err(_) if self.hosts[host].disk.is_off() => self.power_loss(host),
            Err(error) => {
                assert!(self.nature.rollbacks, "h{host} does not start: {error}");
                self.lose(host);
                self.hosts[host].restart_at_ms = Some(self.now_ms + 1_000);
            }
        }
        let seeds: Vec<String> = self.managers().map(|manager| manager.address()).collect();
        self.hosts[host].peer.iter_mut().for_each(|peer| peer.set_seeds(seeds.clone()));
        self.outputs(host);
    }

    fn power_loss(&mut self, host: usize) {
        self.oracle.counts.note("power loss");
        self.say(|| format!("h{host} loses power"));
        let kind =
            [CrashKind::KeepNone, CrashKind::KeepSome, CrashKind::Torn, CrashKind::KeepAll][self.rng.below(4) as usize];
        let in_ms = 200 + self.rng.below(8_000);
        let h = &mut self.hosts[host];
        h.stop();
        h.disk = h.disk.crash(kind);
        h.state = h.synced.clone();
        h.restart_at_ms = Some(self.now_ms + in_ms);
    }

    fn send(&mut self, from: usize, call: Call) {
        let Address::Address(address) = &call.peer else { panic!("peers are called by address") };
        let to: usize = address[1..].split('.').next().and_then(|name| name.parse().ok()).unwrap();
        let life = self.hosts[from].life;
        if *address != self.hosts[to].address()
            || self.rng.below(100) < self.nature.loss_percent
            || self.cut.contains(&(from, to))
            || self.unreached == Some(to)
        {
            return self.fail(from, life, call);
        }
        let delay = 1 + self.rng.below(self.nature.delay_ms * 2);
        self.at(delay, Event::Frame { from, life, to, call });
    }

    /// The caller learns that nothing came back, at its time-out or at once.
    fn fail(&mut self, from: usize, life: u64, call: Call) {
        let delay = if self.rng.below(2) == 0 { call.timeout_ms } else { 1 };
        let result = Err(Error::new(Code::Unavailable, "lost"));
        self.at(delay, Event::Answer { to: from, life, answer: Answer { token: call.token, result } });
    }

    fn frame(&mut self, from: usize, life: u64, to: usize, call: Call) {
        let wait_ms = self.hosts[to].paused_until_ms.saturating_sub(self.now_ms);
        if wait_ms > 0 {
            // It lies in a buffer of the paused host.
            return self.at(wait_ms, Event::Frame { from, life, to, call });
        }
        if !self.runs(to) {
            return self.fail(from, life, call);
        }
        self.next_frame += 1;
        let token = self.next_frame;
        self.asked.insert((to, token), (from, life, call.token));
        let payload = Bytes::from(call.payload.concat());
        self.input(to, Input::Request { token, kind: call.kind, body: call.body.clone(), payload });
        if self.asked.remove(&(to, token)).is_some() {
            self.fail(from, life, call);
        }
    }

    fn reply(&mut self, host: usize, token: u64, result: Result<(Bytes, Vec<Bytes>), Error>) {
        let Some((to, life, call)) = self.asked.remove(&(host, token)) else { return };
        let mut result = result.map(|(body, payload)| (body, payload.concat()));
        // A piece of a snapshot comes without a message.
        if let Ok((body, piece)) = &mut result
            && body.is_empty()
            && !piece.is_empty()
        {
            self.oracle.counts.note("snapshot copied");
            if self.rng.below(50) == 0 {
                piece[0] ^= 1; // A bit flips on the way.
            }
        }
        let result = result.map(|(body, payload)| (body, payload.into()));
        self.deliver(host, to, life, Answer { token: call, result });
    }

    fn deliver(&mut self, from: usize, to: usize, life: u64, answer: Answer) {
        let lost = self.rng.below(100) < self.nature.loss_percent || self.cut.contains(&(from, to));
        let result = if lost { Err(Error::new(Code::Timeout, "lost")) } else { answer.result };
        let delay = if lost { 3_000 } else { 1 + self.rng.below(self.nature.delay_ms * 2) };
        self.at(delay, Event::Answer { to, life, answer: Answer { token: answer.token, result } });
    }

    fn fault(&mut self) {
        if self.rolled_back_at_ms > 0 && self.now_ms < self.rolled_back_at_ms + 8_000 {
            return; // It is a lost peer that has not been found out yet, and a group of three survives one.
        }
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        let kind = self.rng.below(8);
        let nature = &self.nature;
        match kind {
            0 if nature.crashes && self.hosts[host].peer.is_some() => self.power_loss(host),
            // In the middle of whatever it writes next.
            1 if nature.crashes && !nature.rollbacks && self.hosts[host].peer.is_some() => {
                let disk = &self.hosts[host].disk;
                disk.fail_at(disk.io_count() + self.rng.below(6), Fault::PowerLoss);
            }
            2 if nature.cuts && self.rng.below(4) == 0 => {
                self.oracle.counts.note("unreached");
                self.unreached = Some(host);
                self.say(|| format!("nobody reaches h{host}"));
            }
            2 if nature.cuts => {
                self.oracle.counts.note("partition");
                let both = self.rng.below(2) == 0;
                let other = self.rng.below(self.hosts.len() as u64) as usize;
                for peer in 0..self.hosts.len() {
                    // One host, or one half, away from the rest; in both directions or in one.
                    if (peer <= other) != (host <= other) || peer == other {
                        self.cut.insert((host, peer));
                        if both {
                            self.cut.insert((peer, host));
                        }
                    }
                }
                self.say(|| format!("h{host} is cut"));
            }
            3 => {
                self.make_whole();
                self.say(|| "the network is whole".to_string());
            }
            4 if nature.pauses => {
                let pause = 100 + self.rng.below(6_000);
                self.hosts[host].paused_until_ms = self.now_ms + pause;
                self.say(|| format!("h{host} pauses {pause} ms"));
            }
            5 if nature.rollbacks => self.roll_back(host),
            // One lost disk at a time: what is beyond loses the group, as promised.
            6 if nature.wipes && self.all_well() => {
                self.say(|| format!("h{host} loses its disk"));
                self.lose(host);
                let in_ms = 200 + self.rng.below(5_000);
                self.hosts[host].restart_at_ms = Some(self.now_ms + in_ms);
            }
            7 if nature.full => {
                let full = self.rng.below(2) == 0;
                if full {
                    self.oracle.counts.note("full disk");
                }
                let used: u64 = self.hosts[host]
                    .disk
                    .paths()
                    .iter()
                    .filter_map(|p| self.hosts[host].disk.contents(p))
                    .map(|c| c.len() as u64)
                    .sum();
                self.hosts[host].disk.set_capacity(if full { used + self.rng.below(500) } else { 1 << 50 });
                self.say(|| format!("h{host}'s disk is {}", if full { "full" } else { "free" }));
            }
            _ => {}
        }
    }

    /// Every host runs and the group has at least three voters, all of them up to date: it can afford to lose one.
    fn all_well(&self) -> bool {
        let leader = self.hosts.iter().filter_map(|h| h.peer.as_ref()).find(|p| p.standing().leads);
        let Some(leader) = leader else { return false };
        let last = leader.log().last_index();
        let is_there = |id: u64| self.hosts.iter().any(|h| h.peer.as_ref().is_some_and(|p| p.id() == id));
        let holds = |id: u64| is_there(id) && leader.progress().iter().any(|p| p.id == id && p.matched + 20 > last);
        let membership = leader.membership();
        let all_run = (0..self.hosts.len()).all(|host| self.runs(host));
        let is_quiet = self.now_ms > self.lost_at_ms + 10_000;
        all_run
            && is_quiet
            && membership.voters.len() >= 3
            && membership.voters_outgoing.is_empty()
            && membership.voters.iter().all(|&id| holds(id))
    }

    fn roll_back(&mut self, host: usize) {
        // Others must remember: a rollback of one that a majority forgot cannot be found out.
        if self.hosts[host].backup.is_none() {
            // A copy from when the peer was alone finds out what it lacks only from another manager, whose address it is told.
            let has_other = self.managers().any(|manager| manager.name != host);
            let votes = |p: &Peer| p.membership().voters.len() >= 3;
            let can_ask = |p: &Peer| votes(p) || has_other && !p.membership().voters.is_empty();
            if self.hosts[host].peer.as_ref().is_some_and(can_ask) {
                self.hosts[host].back_up();
            }
            return;
        }
        if !self.all_well() {
            return;
        }
        self.oracle.counts.note("rollback");
        self.say(|| format!("h{host} is rolled back"));
        let seed = self.rng.next_u64();
        (self.lost_at_ms, self.rolled_back_at_ms) = (self.now_ms, self.now_ms);
        self.make_whole();
        self.hosts[host].stop();
        self.hosts[host].roll_back(seed);
        self.hosts[host].restart_at_ms = Some(self.now_ms + 300);
    }

    fn make_whole(&mut self) {
        self.cut.clear();
        self.unreached = None;
    }

    fn heal(&mut self) {
        self.calm = true;
        self.make_whole();
        self.nature.loss_percent = 0;
        self.nature.delay_ms = 5;
        for host in 0..self.hosts.len() {
            let now_ms = self.now_ms;
            let h = &mut self.hosts[host];
            h.disk.set_capacity(1 << 50);
            if h.disk.is_off() {
                h.disk = h.disk.crash(CrashKind::KeepSome);
                h.state = h.synced.clone();
                h.stop();
            }
            h.paused_until_ms = 0;
            if h.peer.is_none() {
                h.restart_at_ms = Some(now_ms);
            }
        }
    }
}
