//! Name a chunk, then verify 16 KiB of it without the rest.

use tessera_accel::hash::{GROUP_BYTES, tree, verify_group, verify_groups};

fn main() -> Result<(), tessera_accel::hash::TreeError> {
    let chunk: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
    let named = tree(&chunk);
    println!("name {} (standard BLAKE3), {} group hashes", named.root, named.groups.len());

    // A reader that knows the name receives the group hashes and one group, and believes neither.
    verify_groups(&named.root, chunk.len() as u64, &named.groups)?;
    let part = &chunk[5 * GROUP_BYTES..6 * GROUP_BYTES];
    verify_group(5, chunk.len() as u64, &named.groups, part)?;
    println!("group 5 is part of that chunk");

    let mut rotten = part.to_vec();
    rotten[1000] ^= 1;
    let refusal = verify_group(5, chunk.len() as u64, &named.groups, &rotten);
    println!("with one bit flipped: {}", refusal.expect_err("rot is found"));
    Ok(())
}
