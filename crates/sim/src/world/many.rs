//! A store of very many tiny chunks, on which a node fails: repair ends, all is whole again, and clients are served meanwhile.
//! Every chunk is written by the client's core, through the real managers, voters and nodes.

use super::*;
use crate::network::NetworkFaults;

/// Chunks of a file, and their length.
const FILE_CHUNKS: u64 = 5_000;
const CHUNK_BYTES: usize = 32;
/// Longest time for a file, and for the repair of a thousand chunks, ms.
const FILE_MS: i64 = 60_000;
const REPAIR_MS_PER_1000: i64 = 20_000;

/// What came out.
#[derive(Debug, Clone, Copy)]
pub struct Many {
    /// Chunks of the store when the node failed.
    pub chunks: u64,
    /// Simulated time from the failure until every chunk had all its fragments, ms.
    pub repair_ms: u64,
    /// Longest waits of a client that wrote and read small files meanwhile.
    pub waits: Waits,
}

/// Fills a store with this many chunks, has a node fail, and checks that repair ends and all is whole.
///
/// # Errors
/// The first broken promise.
pub fn many_chunks(chunks: u64) -> Result<Many, Violation> {
    let plan = Plan {
        nodes: 5,
        managers: 1,
        clients: 1,
        redundancy: "replica:2",
        m: 1,
        optimistic: false,
        operations: 0,
        piece_bytes: CHUNK_BYTES,
        endless_reader: false,
        many_chunks: true,
        network: NetworkFaults { min_delay_us: 100, max_delay_us: 100, ..NetworkFaults::default() },
        faults: Vec::new(),
        ..Plan::survivable(1)
    };
    let mut world =
        World::new(Plan { clocks_differ: false, probes: false, snapshots_often: false, ..plan }, Mutant::None, false);
    world.start_all()?;
    world.wait_ms(5_000)?;
    for file in 0..chunks.div_ceil(FILE_CHUNKS) {
        world.put_random(&format!("f{file}"), FILE_CHUNKS.min(chunks - file * FILE_CHUNKS))?;
    }
    let before = world.leader_mut().status().map_or(0, |status| status.chunks);
    let repair_ms = world.fail_and_repair(chunks)?;
    let waits = world.latency.waits;
    world.read_back_some(chunks.div_ceil(FILE_CHUNKS))?;
    world.leader().recount().map_err(|fact| Violation { promise: "P4", fact })?;
    world.check_all_in_place()?;
    Ok(Many { chunks: before, repair_ms, waits })
}

impl World {
    fn wait_ms(&mut self, ms: i64) -> Result<(), Violation> {
        self.run_until(self.now_ns + ms * MS, |_| false)
    }

    /// A client writes a file of new content.
    fn put_random(&mut self, path: &str, chunks: u64) -> Result<(), Violation> {
        let words = chunks as usize * CHUNK_BYTES / 8;
        let bytes: Vec<u8> = std::iter::repeat_with(|| self.rng.any().to_le_bytes()).take(words).flatten().collect();
        self.clients[0].errors.clear();
        self.clients[0].put(self.now_ns, path, &bytes, "replica:2", &mut self.oracle);
        self.push(self.now_ns, Event::ClientTick { client: 0, incarnation: self.clients[0].incarnation });
        self.run_until(self.now_ns + FILE_MS * MS, |world| world.clients[0].is_done())?;
        match (self.clients[0].is_done(), self.clients[0].errors.first()) {
            (true, None) => Ok(()),
            (false, _) => broken("P12", format!("{path}: {}", self.clients[0].describe_operation())),
            (true, Some((_, error))) => broken("P1", format!("{path}: {error}")),
        }
    }

    /// A node is lost; a client writes and reads small files until all is whole again. Returns the time it takes, in ms.
    fn fail_and_repair(&mut self, chunks: u64) -> Result<u64, Violation> {
        self.latency = latency::Latency::default();
        let failed_ns = self.now_ns;
        self.inject(Fault::LoseNode(0))?;
        let deadline = failed_ns + (60_000 + REPAIR_MS_PER_1000 * (chunks / 1_000) as i64) * MS;
        let mut number = 0;
        while !self.nodes[0].lost || !self.is_settled() {
            if self.now_ns > deadline {
                return broken("P6", format!("no end of repair: {}", self.leader_mut().status_line()));
            }
            let path = format!("small{}", number % 20);
            number += 1;
            self.put_random(&path, 3)?;
            self.read(&path, self.now_ns + FILE_MS * MS)?;
            self.wait_ms(500)?;
        }
        Ok(((self.now_ns - failed_ns) / MS) as u64)
    }

    fn read_back_some(&mut self, files: u64) -> Result<(), Violation> {
        for file in (0..files).step_by((files as usize / 5).max(1)) {
            self.read(&format!("f{file}"), self.now_ns + FILE_MS * MS)?;
            if let Some((_, error)) = self.clients[0].errors.first() {
                return broken("P1", format!("f{file}: {error}"));
            }
        }
        Ok(())
    }

    /// Every fragment is where the manager believes it is (P6).
    fn check_all_in_place(&self) -> Result<(), Violation> {
        let placed = self.leader().placed();
        let misses = placed.iter().find(|chunk| {
            let is_held =
                |at: &(u32, Option<usize>)| at.1.is_some_and(|node| self.nodes[node].holds(chunk.chunk_id, at.0));
            !chunk.fragments.iter().all(is_held)
        });
        misses.map_or(Ok(()), |chunk| broken("P6", self.leader().describe_chunk(chunk.chunk_id)))
    }
}
