//! Batches through the device interface, and what the device says it did.

use tessera_accel::erasure::{Code, Matrix, data_slice, fragment_len};
use tessera_accel::{Coder, EncodeJob, device};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let chunks: Vec<Vec<u8>> = (0..8u8).map(|i| vec![i; 256 << 10]).collect();
    let slices: Vec<&[u8]> = chunks.iter().map(|c| c.as_slice()).collect();
    let device = device();
    for tree in device.tree(&slices) {
        println!("{}", tree.root);
    }
    let code = Coder::from(Code::new(4, 2, Matrix::Cauchy1)?);
    let frag_len = fragment_len(256 << 10, 4);
    let mut parity = vec![vec![0u8; frag_len]; 2 * chunks.len()];
    let mut jobs: Vec<EncodeJob<'_>> = parity
        .chunks_mut(2)
        .zip(&chunks)
        .map(|(room, chunk)| EncodeJob {
            data: (0..4).map(|i| data_slice(chunk, 4, i)).collect(),
            frag_len,
            parity: room.iter_mut().map(|p| p.as_mut_slice()).collect(),
        })
        .collect();
    device.encode(&code, &mut jobs)?;
    println!("{}:", device.name());
    for (primitive, work) in device.usage().0 {
        println!("  {primitive:<12} {:>4} jobs {:>10} bytes", work.jobs, work.bytes);
    }
    Ok(())
}
