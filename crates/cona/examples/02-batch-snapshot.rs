//! Several changes at once, and a reader that is not disturbed by them.

use tessera_cona::{Batch, Durability, Options, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let store = Store::open(dir.path(), Options::default())?;
    store.put(b"account:a", b"100")?;
    store.put(b"account:b", b"0")?;
    let before = store.snapshot();
    let mut transfer = Batch::new();
    transfer.put(b"account:a", b"60").put(b"account:b", b"40");
    store.write_with(transfer, Durability::Sync)?;
    assert_eq!(before.get(b"account:b")?.as_deref(), Some(&b"0"[..]));
    assert_eq!(store.get(b"account:b")?.as_deref(), Some(&b"40"[..]));
    Ok(())
}
