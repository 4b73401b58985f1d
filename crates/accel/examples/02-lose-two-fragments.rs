//! Encode a chunk 4+2, lose two fragments, rebuild them in place.

use tessera_accel::erasure::{Code, Matrix, data_slice};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let chunk: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
    let code = Code::new(4, 2, Matrix::Cauchy1)?;

    // Data fragments are slices of the chunk; only parity is new memory.
    let mut parity = Vec::new();
    let frag_len = code.encode_chunk(&chunk, &mut parity);
    println!("{} bytes -> 4 slices and 2 parity fragments of {frag_len} bytes", chunk.len());

    // Fragments 1 and 3 are lost. Fragment 3 is the chunk's short end: its room is as short.
    let present =
        [(0, data_slice(&chunk, 4, 0)), (2, data_slice(&chunk, 4, 2)), (4, &parity[0][..]), (5, &parity[1][..])];
    let mut first = vec![0; data_slice(&chunk, 4, 1).len()];
    let mut last = vec![0; data_slice(&chunk, 4, 3).len()];
    code.reconstruct(frag_len, &present, &[1, 3], &mut [&mut first, &mut last])?;
    assert_eq!(first, data_slice(&chunk, 4, 1));
    assert_eq!(last, data_slice(&chunk, 4, 3));
    println!("fragments 1 and 3 ({} and {} bytes) are back", first.len(), last.len());
    Ok(())
}
