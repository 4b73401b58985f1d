//! Compares the paper's configuration (64 KiB buffers, doubling cells, 16-bit fragments) with the default.

use tessera_cona::{Options, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (name, options) in [("default", Options::default()), ("paper", Options::paper())] {
        let dir = tempfile::tempdir()?;
        let store = Store::open(dir.path(), options)?;
        for i in 0..100_000_u64 {
            store.put(&i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), &[7; 100])?;
        }
        store.flush()?;
        store.settle()?;
        let stats = store.stats();
        println!(
            "{name}: {} cells, {:.3} B of index and filter a record, {:.2} bytes written a byte",
            stats.cells.len(),
            stats.bytes_per_record(),
            stats.write_amplification()
        );
    }
    Ok(())
}
