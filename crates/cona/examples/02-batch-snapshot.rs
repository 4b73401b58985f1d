//! Writes a batch of changes; a reader with a snapshot does not see them.

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
    let show = |value: Option<Vec<u8>>| String::from_utf8_lossy(&value.unwrap_or_default()).into_owned();
    let (then, now) = (show(before.get(b"account:b")?), show(store.get(b"account:b")?));
    println!("b had {then} before and has {now} now");
    Ok(())
}
