//! Open a store, write, read, scan.

use tessera_cona::{Options, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let store = Store::open(dir.path(), Options::default())?;
    store.put(b"stone:red", b"12")?;
    store.put(b"stone:blue", b"7")?;
    store.put(b"glue", b"1")?;
    store.delete(b"glue")?;
    assert_eq!(store.get(b"stone:blue")?.as_deref(), Some(&b"7"[..]));
    for record in store.prefix(b"stone:")? {
        let (key, value) = record?;
        println!("{} = {}", key.escape_ascii(), value.escape_ascii());
    }
    Ok(())
}
