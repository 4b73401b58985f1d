//! Makes a consistent copy during writes, and checks every byte.

use std::sync::Arc;

use tessera_cona::{Options, Store};
use tessera_disk::{Disk, RealDisk};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let store = Store::open(dir.path().join("store"), Options::default())?;
    for i in 0..10_000_u32 {
        store.put(&i.to_be_bytes(), b"value")?;
    }
    let copy: Arc<dyn Disk> = Arc::new(RealDisk::create(dir.path().join("copy"))?);
    store.checkpoint(&copy, "")?;
    drop(copy);
    let copy = Store::open(dir.path().join("copy"), Options { create: false, ..Options::default() })?;
    let report = copy.verify();
    assert!(report.damage.is_empty());
    println!("{} records in {} cells, all sound", report.records, report.cells);
    Ok(())
}
