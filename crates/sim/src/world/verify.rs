//! The phases of quiescence and verification.
//!
//! After a survivable plan everything must be whole again. After a plan beyond `m` the simulator inspects the nodes' disks
//! itself. A chunk with enough sound fragments in place (k, or its copy) must be whole again and readable. All other chunks
//! must be counted as lost; reads of their files may fail, with a typed error. Nothing else may differ.

use super::*;
use crate::plan::Family;
use std::collections::BTreeSet;
use tessera_net::BufferPool;
use tessera_stripe::{Class, ClassLayout, encode};

impl World {
    pub(super) fn quiesce(&mut self) -> Result<(), Violation> {
        self.record("quiesce");
        self.quiesced = true;
        self.network.stop_faults();
        if let Some(liar) = self.liar {
            // Its session would keep garbage as long as it tries to write.
            self.clients[liar].kill();
        }
        let faults = std::mem::take(&mut self.queue).into_sorted_vec();
        self.queue = faults.into_iter().filter(|Reverse(s)| !matches!(s.what, Event::Fault(_))).collect();
        for node in 0..self.nodes.len() {
            self.nodes[node].set_capacity(1 << 30);
            // A power failure that was scheduled happens now.
            if self.nodes[node].power_fails_soon {
                self.nodes[node].power_off(CrashKind::KeepSome);
            }
            self.resume(node);
        }
        self.slow.clear();
        (0..self.clients.len()).for_each(|client| self.resume_client(client));
        for manager in 0..self.managers.len() {
            self.resume_manager(manager)?;
        }
        let deadline = self.now_ns + QUIESCE_TIMEOUT_MS * MS;
        self.run_until(deadline, |w| w.honest().all(ClientHost::is_done) && w.is_settled())?;
        if self.mutant == Mutant::OldReceipts && !self.is_unsettled() {
            self.check_reported()?;
        }
        let scrubs = self.plan.rots() || self.mutant == Mutant::WrongParity || self.plan.seed.is_multiple_of(4);
        if scrubs && !self.is_unsettled() {
            self.record("scrub");
            self.scrubbed = true;
            self.scrub(deadline)?;
        }
        Ok(())
    }

    /// Scrubs once. A leader that takes over meanwhile knows nothing of it: it is told again, as the command does.
    fn scrub(&mut self, deadline: i64) -> Result<(), Violation> {
        loop {
            self.with_leader(|host, now| host.scrub(now))?;
            let term = self.leader().term();
            let is_over = |w: &mut World| w.leader_mut().has_scrubbed() && w.is_settled();
            self.run_until(deadline, |w| w.leading().is_some() && w.leader().term() != term || is_over(w))?;
            if self.leader().term() == term || self.now_ns >= deadline {
                return Ok(());
            }
        }
    }

    /// The clients whose operations have to end: all but a liar.
    fn honest(&self) -> impl Iterator<Item = &ClientHost> {
        self.clients.iter().filter(|client| self.liar != Some(client.index))
    }

    pub(super) fn verify(&mut self) -> Result<(), Violation> {
        let deadline = self.now_ns + QUIESCE_TIMEOUT_MS * MS;
        if self.leading().is_none() {
            return broken("P12", format!("no manager leads long after faults ended:\n{}", self.describe_group()));
        }
        if let Some(client) = self.honest().find(|c| !c.is_done()) {
            return broken(
                "P12",
                format!("client {} did not finish after faults ended: {}", client.index, client.describe_operation()),
            );
        }
        if self.is_unsettled() {
            let status = self.leader_mut().status_line();
            let reduced: Vec<Placed> = self.leader().placed().into_iter().filter(|c| self.is_reduced(c)).collect();
            let lost = self.describe(&self.lost_chunks());
            return broken(
                "P6",
                format!("redundancy has not returned: {status}; to be rebuilt: {reduced:?}; lost: {lost}"),
            );
        }
        self.record("verify");
        let lost = self.lost_chunks();
        for path in self.oracle.paths().into_iter().chain(self.oracle.logs()) {
            self.read_back(&path, &lost, deadline)?;
        }
        self.leader().recount().map_err(|fact| Violation { promise: "P4", fact })?;
        // Unreferenced chunks may have been collected during the reads.
        let lost = self.lost_chunks();
        self.count_fragments(&lost)?;
        self.count_lost(&lost, deadline)?;
        self.check_parity()?;
        self.collect_garbage(deadline)?;
        self.check_group(deadline + 2 * QUIESCE_TIMEOUT_MS * MS)?;
        if self.plan.rots_metadata { self.read_from_rotten_metadata(deadline) } else { Ok(()) }
    }

    /// Checks after a scrub that parity is what the chunk gives, where no fragment is missing (P13).
    fn check_parity(&self) -> Result<(), Violation> {
        for chunk in self.leader().placed().iter().filter(|_| self.scrubbed) {
            let bytes = |(fragment, node): &(u32, Option<usize>)| {
                self.nodes.get((*node)?)?.sound_bytes(chunk.chunk_id, *fragment)
            };
            let held: Option<Vec<Vec<u8>>> = chunk.fragments.iter().map(bytes).collect();
            let (Some(held), Ok(class)) = (held, Class::new((*chunk.class).clone())) else { continue };
            let plain = if class.copies() > 0 { 1 } else { class.k as usize };
            let whole = held[..plain].concat().into();
            let parity: Vec<u32> = (0..class.fragments()).filter(|fragment| !class.is_plain(*fragment)).collect();
            for right in encode(&class, &whole, &parity, &BufferPool::new(0)) {
                if held[right.number as usize] != right.bytes {
                    let known = self.leader().describe_chunk(chunk.chunk_id);
                    return broken("P13", format!("parity {} is wrong after a scrub; {known}", right.number));
                }
            }
        }
        Ok(())
    }

    /// Reads a file. The read may fail only if a chunk of the file is lost. It may succeed even then, because a reader also finds
    /// misplaced fragments; its bytes are checked all the same.
    fn read_back(&mut self, path: &str, lost: &BTreeSet<u64>, deadline: i64) -> Result<(), Violation> {
        self.read(path, deadline)?;
        let harmed = self.leader().chunks_of(path).iter().any(|chunk| lost.contains(chunk));
        match (self.clients[0].errors.first(), harmed, self.clients[0].is_done()) {
            (_, _, false) => broken(
                "P12",
                format!("{path}: a read after faults ended does not end: {}", self.clients[0].describe_operation()),
            ),
            (Some((_, error)), false, _) => broken("P1", format!("{path} cannot be read after faults ended: {error}")),
            _ => Ok(()),
        }
    }

    /// Client 0 reads a file; the oracle checks the bytes.
    pub(super) fn read(&mut self, path: &str, deadline: i64) -> Result<(), Violation> {
        let reader = &mut self.clients[0];
        reader.errors.clear();
        reader.read(self.clocks.of(Actor::Client(0), self.now_ns), path);
        self.push(self.now_ns, Event::ClientTick { client: 0, incarnation: self.clients[0].incarnation });
        self.run_until(deadline, |w| w.clients[0].is_done())
    }

    /// Nodes that never return: lost, or with a disk that cannot be opened.
    fn gone(&self) -> Vec<String> {
        let gone = |n: &&NodeHost| n.lost || !n.is_running();
        self.nodes.iter().filter(gone).map(|n| format!("n{}", n.index)).collect()
    }

    /// Everything that can be repaired is repaired.
    pub(super) fn is_settled(&mut self) -> bool {
        let gone = self.gone();
        match self.plan.family {
            Family::Survivable => self.leader_mut().is_whole(&gone),
            Family::Beyond => {
                // Before the scrub, rot may be undetected.
                let can_be_whole = self.plan.spare_hosts && (self.scrubbed || !self.plan.rots());
                let failed = self.nodes.iter().filter(|n| n.has_failed_disk()).map(|n| format!("n{}", n.index));
                let failed: Vec<String> = failed.collect();
                let placed = if can_be_whole { self.leader().placed() } else { Vec::new() };
                self.leader_mut().has_given_up(&gone, &failed) && !placed.iter().any(|chunk| self.is_reduced(chunk))
            }
        }
    }

    /// Neither lost nor whole.
    fn is_reduced(&self, chunk: &Placed) -> bool {
        let sound = self.sound_fragments(chunk);
        chunk.class.suffices(sound.iter().copied()) && sound.len() < chunk.fragments.len()
    }

    fn is_unsettled(&mut self) -> bool {
        !self.is_settled()
    }

    fn sound_fragments(&self, chunk: &Placed) -> Vec<u32> {
        chunk.fragments.iter().filter(|at| self.is_sound(chunk, at)).map(|(fragment, _)| *fragment).collect()
    }

    fn is_sound(&self, chunk: &Placed, &(fragment, node): &(u32, Option<usize>)) -> bool {
        let host = node.and_then(|n| self.nodes.get(n));
        host.is_some_and(|host| match self.plan.rots() {
            true => host.holds_sound(chunk.chunk_id, fragment),
            false => host.holds(chunk.chunk_id, fragment),
        })
    }

    /// Chunks with too few sound fragments in place.
    fn lost_chunks(&self) -> BTreeSet<u64> {
        let placed = self.leader().placed();
        let lost = placed.iter().filter(|chunk| !chunk.class.suffices(self.sound_fragments(chunk)));
        lost.map(|chunk| chunk.chunk_id).collect()
    }

    /// The manager's view of these chunks, for messages.
    fn describe(&self, chunks: &BTreeSet<u64>) -> String {
        chunks.iter().map(|chunk| self.leader().describe_chunk(*chunk)).collect::<Vec<_>>().join("; ")
    }

    /// Checks that each fragment that the manager believes to be in place is in place (P6) and sound (P13), except for lost chunks.
    fn count_fragments(&mut self, lost: &BTreeSet<u64>) -> Result<(), Violation> {
        if !self.plan.spare_hosts {
            return Ok(());
        }
        for chunk in self.leader().placed().iter().filter(|chunk| !lost.contains(&chunk.chunk_id)) {
            let bad: Vec<_> = chunk.fragments.iter().filter(|at| !self.is_sound(chunk, at)).collect();
            if !bad.is_empty() {
                let known = self.leader().describe_chunk(chunk.chunk_id);
                return broken("P6", format!("(fragment, node) {bad:?} are not in place; {known}"));
            }
        }
        Ok(())
    }

    /// Checks that `status` comes to count the lost chunks, and that a survivable plan lost none (P1).
    fn count_lost(&mut self, lost: &BTreeSet<u64>, deadline: i64) -> Result<(), Violation> {
        if let (Family::Survivable, Some(chunk)) = (self.plan.family, lost.first()) {
            return broken("P1", format!("chunk {chunk} is lost"));
        }
        // A fragment that was stored, but not acknowledged, counts as missing until its node says so.
        let counts = |w: &mut World| w.leader_mut().status().is_some_and(|s| s.chunks_lost == lost.len() as u64);
        self.run_until(deadline, counts)?;
        let Some(mut status) = self.leader_mut().status() else { return broken("P7", "no status".into()) };
        self.mutant.corrupt_status(&mut status);
        match status.chunks_lost == lost.len() as u64 {
            true => Ok(()),
            false => {
                let known = self.describe(lost);
                broken("P6", format!("status counts {} chunks as lost, {lost:?} are: {known}", status.chunks_lost))
            }
        }
    }

    /// Collects garbage once all sessions are over, and checks that none remains (P5).
    pub(super) fn collect_garbage(&mut self, deadline: i64) -> Result<(), Violation> {
        self.with_leader(|host, now| host.collect_garbage(now))?;
        // A reader that stays open keeps nothing but the version that it reads, which is no garbage.
        let readers = u64::from(self.plan.endless_reader && self.reader.is_open());
        self.wait_clean(deadline, readers)?;
        if std::mem::take(&mut self.plan.endless_reader) {
            self.end_reading()?;
            // What only the reader kept becomes garbage in a moment.
            self.run_until(self.now_ns + 1_000 * MS, |_| false)?;
        }
        self.wait_clean(deadline, 0)
    }

    /// Waits until no garbage is left while this many sessions are open.
    fn wait_clean(&mut self, deadline: i64, sessions: u64) -> Result<(), Violation> {
        self.run_until(deadline + QUIESCE_TIMEOUT_MS * MS, |w| w.leader_mut().is_clean(sessions))?;
        match self.leader_mut().is_clean(sessions) {
            true => Ok(()),
            false => broken("P5", format!("garbage stays: {}", self.leader_mut().status_line())),
        }
    }
}
