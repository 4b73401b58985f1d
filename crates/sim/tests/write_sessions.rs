//! A write session of the simulated mounts leaves in a file what it was told, whatever it commits on the way: as the client library's does
//! (`crates/client/src/handle_tests.rs`).

use prost::Message;
use std::cell::Cell;
use std::rc::Rc;
use tessera_sim::mount_host::env::Env;
use tessera_sim::mount_host::executor::{Executor, Owner};
use tessera_sim::mount_host::link::{Link, Outgoing};
use tessera_sim::mount_host::store::{BLOCK_BYTES, Block, HOLE, Store, Target};
use tessera_sim::plan::Rng;
use tessera_wire::meta::*;
use tessera_wire::{Extent, Kind};

const PROCESS: Owner = Owner { index: 0, incarnation: 1 };

/// What a session is told. Offsets and lengths are blocks.
#[derive(Debug, Clone, Copy)]
enum Step {
    Write(u64, u64),
    Clear(u64, u64),
    Skip(u64),
    Length(u64),
    Sync,
}

/// Bytes of these blocks, which no other step writes.
fn bytes(step: usize, count: u64) -> Vec<u8> {
    (0..count * BLOCK_BYTES).map(|at| (step as u64 + 1 + at / BLOCK_BYTES * 16) as u8).collect()
}

fn grown(file: &mut Vec<u8>, end: u64) {
    file.resize(file.len().max((end * BLOCK_BYTES) as usize), 0);
}

fn put(file: &mut [u8], at: u64, new: &[u8]) {
    file[(at * BLOCK_BYTES) as usize..][..new.len()].copy_from_slice(new);
}

/// The file after these steps.
fn expected(mut file: Vec<u8>, steps: &[Step]) -> Vec<u8> {
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Write(at, count) => {
                grown(&mut file, at + count);
                put(&mut file, at, &bytes(number, count));
            }
            Step::Clear(_, 0) => {}
            Step::Clear(at, count) => {
                grown(&mut file, at + count);
                put(&mut file, at, &vec![0; (count * BLOCK_BYTES) as usize]);
            }
            Step::Skip(at) => grown(&mut file, at),
            Step::Length(len) => file.resize((len * BLOCK_BYTES) as usize, 0),
            Step::Sync => {}
        }
    }
    file
}

/// A manager of one file.
#[derive(Default)]
struct Manager {
    file: Vec<u8>,
    blocks: Vec<Block>,
    staged: Vec<Extent>,
}

impl Manager {
    fn answer(&mut self, kind: Kind, body: &[u8]) -> Vec<u8> {
        match kind {
            Kind::OpenWrite => {
                let base_size_bytes = self.file.len() as u64;
                OpenWriteReply { session_id: 1, session_ms: 1_000, base_size_bytes, ..Default::default() }
                    .encode_to_vec()
            }
            Kind::AllocateChunks => {
                let chunks = AllocateChunks::decode(body).unwrap().chunks;
                let answers = chunks.iter().map(|chunk| {
                    self.blocks.push(chunk.hash[..].try_into().unwrap());
                    ChunkAnswer { chunk_id: self.blocks.len() as u64, ..ChunkAnswer::default() }
                });
                AllocateChunksReply { answers: answers.collect(), ..Default::default() }.encode_to_vec()
            }
            Kind::Commit => {
                self.commit(Commit::decode(body).unwrap());
                CommitReply::default().encode_to_vec()
            }
            _ => Vec::new(),
        }
    }

    fn commit(&mut self, commit: Commit) {
        self.staged.extend(commit.extents);
        assert!(self.staged.is_sorted_by(|a, b| a.end() <= b.offset), "{:?}", self.staged);
        if commit.partial {
            return;
        }
        let len_bytes = if commit.cuts { commit.size_bytes } else { commit.size_bytes.max(self.file.len() as u64) };
        self.file.resize(len_bytes as usize, 0);
        for extent in self.staged.drain(..) {
            let block = extent.chunk_id.checked_sub(1).map_or(HOLE, |at| self.blocks[at as usize]);
            self.file[extent.offset as usize..extent.end() as usize].copy_from_slice(&block);
        }
    }
}

async fn carry_out(store: Store, steps: Vec<Step>) {
    let mut writer = store.open_write(Target::inode(7), true, None).await.unwrap();
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Write(at, count) => writer.write_at(at * BLOCK_BYTES, &bytes(number, count)).await.unwrap(),
            Step::Clear(at, count) => writer.clear(at * BLOCK_BYTES..(at + count) * BLOCK_BYTES).await.unwrap(),
            Step::Skip(at) => writer.skip_to(at * BLOCK_BYTES).await.unwrap(),
            Step::Length(len) => writer.set_len(len * BLOCK_BYTES).await.unwrap(),
            Step::Sync => drop(writer.sync().await.unwrap()),
        }
    }
    writer.finish().await.unwrap();
}

/// The file that the session leaves.
fn left(file: Vec<u8>, steps: &[Step], seed: u64) -> Vec<u8> {
    let mut executor = Executor::new(seed);
    let env = Env::new(0, executor.spawner());
    let link = Link::new(env.clone(), PROCESS, seed, false);
    let mut manager = Manager { file, ..Manager::default() };
    let (is_done, store, steps) = (Rc::new(Cell::new(false)), Store::new(link.clone()), steps.to_vec());
    let done = is_done.clone();
    env.spawn(PROCESS, async move {
        carry_out(store, steps).await;
        done.set(true);
    });
    while !is_done.get() {
        executor.run();
        let messages = link.take_outgoing();
        if messages.is_empty()
            && let Some(next_ns) = env.next_timer_ns()
        {
            env.advance(next_ns);
        }
        for message in messages {
            if let Outgoing::Request { ticket, kind, body, .. } = message {
                link.complete(ticket, Ok(manager.answer(kind, &body).into()));
            }
        }
    }
    manager.file
}

fn check(before: u64, steps: &[Step], seed: u64) {
    let file = bytes(13, before);
    assert!(left(file.clone(), steps, seed) == expected(file, steps), "seed {seed}: {before} blocks, {steps:?}");
}

#[test]
fn a_session_leaves_what_it_was_told() {
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let steps = (0..rng.between(1, 12)).map(|_| {
            let (at, count) = (rng.between(0, 14), rng.between(0, 3));
            match rng.between(0, 9) {
                0..=4 => Step::Write(at, count),
                5 => Step::Clear(at, count),
                6 => Step::Skip(at),
                7 | 8 => Step::Length(at),
                _ => Step::Sync,
            }
        });
        let steps: Vec<Step> = steps.collect();
        check(seed % 9, &steps, seed);
    }
}

#[test]
fn blocks_that_were_cut_off_do_not_come_back() {
    for go_on in [Step::Write(5, 1), Step::Clear(5, 1), Step::Skip(5), Step::Length(5)] {
        check(9, &[Step::Length(1), go_on], 1);
    }
}

#[test]
fn nothing_is_cleared_where_there_is_nothing() {
    check(2, &[Step::Write(0, 1), Step::Clear(5, 0)], 1);
}
