//! Bytes that are new every time, and what the parts of the data path reach alone: floors of its CPU time.

use crate::Reply;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;
use tessera_accel::boundaries::{Cutter, Rule};
use tessera_accel::erasure::{Code, Matrix};
use tessera_accel::{Coder, EncodeJob, device};

/// Fills `out` from a counter through SplitMix64 (Steele, Lea, Flood 2014), by two threads.
///
/// Different seeds give different bytes, so that nothing deduplicates and nothing compresses.
pub fn fill(out: &mut [u8], seed: u64) {
    let half = (out.len() / 2).next_multiple_of(8).min(out.len());
    let (low, high) = out.split_at_mut(half);
    let start = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    std::thread::scope(|scope| {
        scope.spawn(|| fill_part(low, start));
        fill_part(high, start.wrapping_add(1 << 62));
    });
}

fn fill_part(out: &mut [u8], start: u64) {
    let mut state = start;
    for piece in out.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        piece.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..piece.len()]);
    }
}

/// Bytes of the source that the kernels are tried on.
const SAMPLE_BYTES: usize = 128 << 20;
/// A chunk of the usual size, and the code of the benchmark.
const CHUNK_BYTES: usize = 1 << 20;
const CODE: (usize, usize) = (4, 2);

/// Rates of the parts of the data path, each alone, in bytes of input a second of one core.
pub fn kernels(source: &[u8]) -> Reply {
    let sample = &source[..source.len().min(SAMPLE_BYTES) / CHUNK_BYTES * CHUNK_BYTES];
    if sample.is_empty() {
        return Err("nothing is prepared: say prepare BYTES SEED first (at least 1 MiB)".into());
    }
    let chunks: Vec<&[u8]> = sample.chunks(CHUNK_BYTES).collect();
    let device = device();
    let tree = rate(sample, || Ok(device.tree(&chunks).len()))?;
    let crc = rate(sample, || Ok(device.crc32c(&chunks).len()))?;
    let cut = rate(sample, || {
        let mut cuts = Vec::new();
        Cutter::new(Rule::cdc(256 << 10, 4 << 20)?).feed(sample, &mut cuts);
        Ok(cuts.len())
    })?;
    let (k, m) = CODE;
    let code = Coder::from(Code::new(k, m, Matrix::default())?);
    let frag_len = CHUNK_BYTES / k;
    let mut parity = vec![0; m * frag_len];
    let encode = rate(sample, || {
        for chunk in &chunks {
            let data = chunk.chunks(frag_len).collect();
            let parity = parity.chunks_mut(frag_len).collect();
            device.encode(&code, &mut [EncodeJob { data, frag_len, parity }])?;
        }
        Ok(chunks.len())
    })?;
    Ok(format!(
        "device={} blake3={tree:.0} crc32c={crc:.0} boundaries={cut:.0} encode={encode:.0}",
        device.name().replace(' ', "_")
    ))
}

/// Bytes a second of the best of five runs.
fn rate(sample: &[u8], mut work: impl FnMut() -> Result<usize, Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        std::hint::black_box(work()?);
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(sample.len() as f64 / best)
}

/// One thread sends `source` to another over loopback TCP, which reads it into one buffer.
pub fn tcp(source: &[u8]) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut to = TcpStream::connect(listener.local_addr()?)?;
    let (mut from, _) = listener.accept()?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || -> std::io::Result<usize> {
            let mut buffer = vec![0; CHUNK_BYTES];
            let mut total = 0;
            loop {
                match from.read(&mut buffer)? {
                    0 => return Ok(total),
                    got => total += got,
                }
            }
        });
        source.chunks(CHUNK_BYTES).try_for_each(|c| to.write_all(c))?;
        to.shutdown(std::net::Shutdown::Write)?;
        match reader.join().map_err(|_| "the reader panicked")?? {
            total if total == source.len() => Ok(()),
            total => Err(format!("{total} of {} bytes arrived", source.len()).into()),
        }
    })
}
