//! A store of many chunks: `SIM_CHUNKS=N` sets how many; `make soak` takes a million.

use tessera_sim::world::many::many_chunks;

/// A client's wait for the manager while it plans the repair of every second chunk, in ms of simulated time.
const METADATA_WAIT_MS: u64 = 1_000;

/// P6, P12: a node of a store with very many chunks fails. Repair ends, and clients are served meanwhile.
#[test]
fn repair_of_many_chunks_ends() {
    let chunks = std::env::var("SIM_CHUNKS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let started = std::time::Instant::now();
    let found = many_chunks(chunks).unwrap_or_else(|violation| panic!("{} {}", violation.promise, violation.fact));
    println!("{found:?} in {:?}", started.elapsed());
    assert!(found.chunks >= chunks, "{found:?}");
    assert!(found.waits.metadata_ms <= METADATA_WAIT_MS, "{found:?}");
}
