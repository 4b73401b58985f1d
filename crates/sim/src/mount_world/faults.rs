//! Injection of faults.

use super::*;
use tessera_disk::{CrashKind, FaultRates};

impl<H: Host> MountWorld<H> {
    pub(super) fn inject(&mut self, fault: Fault) {
        // A loss of power may damage a log whose close was not synced.
        if let Fault::FailSpool(mount)
        | Fault::FillSpool(mount)
        | Fault::Kill { mount, power_loss: true, .. }
        | Fault::KillAtCommit { mount, power_loss: true, .. } = fault
        {
            self.shared.leaves_logs.borrow_mut()[mount] = true;
        }
        match fault {
            Fault::Break(mount) => {
                self.break_connection(mount);
            }
            Fault::CutOff(mount, ms) => self.cut_off(mount, ms),
            Fault::Kill { mount, power_loss, back_ms } => self.kill_mount(mount, power_loss, back_ms),
            Fault::KillAtCommit { mount, done, power_loss, back_ms } => {
                self.mounts[mount].dies_at_commit = Some((done, power_loss, back_ms));
            }
            Fault::KillManager => {
                self.manager.kill();
                self.manager_gone();
            }
            Fault::DelayClaim(mount) => self.mounts[mount].delays_claim = true,
            Fault::StartManager => self.start_manager(),
            Fault::LeadAnew => self.lead_anew(),
            Fault::FailSpoolAtStart(mount, ms) => self.mounts[mount].fails_at_start_ms = Some(ms),
            Fault::FailSpool(mount) => {
                self.fail_spool(mount);
                if self.mounts[mount].is_starting() {
                    self.model.borrow_mut().spool_unread(mount);
                }
            }
            Fault::FillSpool(mount) => self.mounts[mount].disk.set_capacity(1),
            Fault::MendSpool(mount) => self.mend(mount),
        }
    }

    fn fail_spool(&mut self, mount: usize) {
        let rates = FaultRates { sync_fails: 500_000, write_eio: 200_000, ..FaultRates::default() };
        let slot = &mut self.mounts[mount];
        slot.disk.set_rates(rates);
        slot.spool_fails = true;
        self.model.borrow_mut().spool_failed(mount);
    }

    /// A process of a mount starts: its spool's disk may be about to fail.
    pub(super) fn fail_at_start(&mut self, mount: usize) {
        if let Some(ms) = self.mounts[mount].fails_at_start_ms.take() {
            self.shared.leaves_logs.borrow_mut()[mount] = true;
            self.fail_spool(mount);
            self.push(self.now_ns + ms as i64 * MS, Event::Fault(Fault::MendSpool(mount)));
        }
    }

    fn mend(&mut self, mount: usize) {
        let slot = &mut self.mounts[mount];
        slot.disk.set_rates(FaultRates::default());
        slot.disk.set_capacity(1 << 40);
        slot.spool_fails = false;
    }

    /// Holds the messages of a mount back. Half of the time the connection breaks meanwhile.
    fn cut_off(&mut self, mount: usize, ms: u64) {
        let until_ns = self.now_ns + ms as i64 * MS;
        self.mounts[mount].cut_until_ns = until_ns;
        self.model.borrow_mut().cut_off(mount, self.now_ns, until_ns);
        if self.rng.percent(50) {
            let after_ns = self.rng.between(0, ms) as i64 * MS;
            self.push(self.now_ns + after_ns, Event::Fault(Fault::Break(mount)));
        }
    }

    fn start_manager(&mut self) {
        if !self.manager.is_running() {
            self.manager.start().expect("a manager starts on its own disk");
            self.lead();
            self.push(self.now_ns, Event::ManagerTick { incarnation: self.manager.incarnation });
            self.beat_at_once();
        }
    }

    fn beat_at_once(&mut self) {
        self.push(self.now_ns, Event::NodeBeat);
    }

    /// Kills a mount's process. Its spool keeps what a kill, or the loss of power, leaves.
    pub(super) fn kill_mount(&mut self, mount: usize, power_loss: bool, back_ms: u64) {
        let owner = self.owner(mount);
        if self.mounts[mount].link.is_none() {
            return;
        }
        // What it has sent before is on its way.
        self.send_outgoing();
        let kinds = [CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::KeepSome, CrashKind::Torn];
        let kind = *self.rng.pick(&kinds);
        let slot = &mut self.mounts[mount];
        let lossy = power_loss || tessera_disk::Disk::is_poisoned(&slot.disk);
        slot.disk = if power_loss { slot.disk.crash(kind) } else { slot.disk.reopen() };
        (slot.link, slot.host, slot.started) = (None, None, Rc::default());
        slot.line = Line::Closed(0);
        self.executor.kill(owner);
        self.mount_gone(owner, power_loss);
        self.model.borrow_mut().killed(mount, lossy);
        self.push(self.now_ns + back_ms as i64 * MS, Event::StartMount(mount));
    }

    /// No more faults: everything works again from now on. A mount that is to die at its next commit still does, as long as programs run.
    pub(super) fn end_faults(&mut self) {
        let events = std::mem::take(&mut self.queue).into_sorted_vec();
        self.queue = events.into_iter().filter(|Reverse(s)| !matches!(s.what, Event::Fault(_))).collect();
        for mount in 0..self.mounts.len() {
            self.mend(mount);
            self.mounts[mount].fails_at_start_ms = None;
            self.mounts[mount].delays_claim = false;
            self.mounts[mount].cut_until_ns = self.mounts[mount].cut_until_ns.min(self.now_ns + 5_000 * MS);
        }
        self.start_manager();
    }
}
