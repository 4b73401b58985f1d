//! Fragments on the nodes' disks, read from each node directly: nothing in between decodes, verifies or chooses.

use bytes::Bytes;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tessera_net::dialer::NoService;
use tessera_net::{BufferPool, Dialer, Endpoint};
use tessera_wire::data::{GetFragments, GetItem};
use tessera_wire::{Hello, PROTOCOL_VERSION, Role};

const WAIT: Duration = Duration::from_secs(30);

/// Reads fragments as a client does.
pub struct Reader(Dialer);

impl Reader {
    pub fn new() -> Reader {
        let hello = Hello {
            protocol_version: PROTOCOL_VERSION,
            role: Role::Client as i32,
            cluster_id: Vec::new(),
            release: "test".into(),
            client_id: 1,
            host: String::new(),
        };
        Reader(Dialer::new(hello, Arc::new(NoService), BufferPool::new(8 << 20)))
    }

    /// The fragment of one `extents[].fragments[]` of `tessera locate --extents --json`, from its node.
    pub fn get(&self, extent: &Value, fragment: &Value) -> Bytes {
        let number = |value: &Value| value.as_u64().expect("a number");
        let item = GetItem {
            chunk_id: number(&extent["chunk_id"]),
            fragment: number(&fragment["fragment"]) as u32,
            disk_id: number(&fragment["disk_id"]),
            whole: true,
            ..GetItem::default()
        };
        let endpoint = Endpoint::Tcp(fragment["address"].as_str().expect("an address").to_string());
        let request = GetFragments { items: vec![item], hints: Vec::new() };
        let (reply, bytes) = self.0.call_wait(&endpoint, &request, Vec::new(), WAIT).expect("the node answers");
        assert_eq!(reply.results[0].error, None, "{fragment}");
        bytes
    }

    /// Checks that the nodes have the fragments of each chunk of `content` that its class prescribes (P1): copies, slices in place, and
    /// parities.
    pub fn check(&self, located: &Value, content: &[u8], class: &str, holds: &[&str]) {
        let extents = located["extents"].as_array().expect("extents");
        assert!(!extents.is_empty());
        for extent in extents {
            assert_eq!(extent["class"], class);
            let number = |name: &str| extent[name].as_u64().expect("a number") as usize;
            let chunk = &content[number("offset")..number("offset") + number("len_bytes")];
            let fragments = extent["fragments"].as_array().expect("fragments");
            let said: Vec<&str> = fragments.iter().map(|f| f["holds"].as_str().expect("a word")).collect();
            assert_eq!(said, holds, "{class}");
            let stored: Vec<Bytes> = fragments.iter().map(|f| self.get(extent, f)).collect();
            // A parity has the length of a slice before the cut at the end of the chunk.
            let slice_bytes = stored.last().map_or(0, Bytes::len);
            for (i, (bytes, holds)) in stored.iter().zip(holds).enumerate() {
                let slice = (i * slice_bytes).min(chunk.len())..((i + 1) * slice_bytes).min(chunk.len());
                match *holds {
                    "copy" => assert!(bytes == chunk, "fragment {i} of {class} is not the chunk"),
                    "slice" => assert!(bytes == &chunk[slice], "fragment {i} of {class} is not that slice"),
                    _ => assert!(bytes.len() == slice_bytes && bytes.iter().any(|b| *b != 0), "parity {i} of {class}"),
                }
            }
            let hosts: std::collections::BTreeSet<&str> = fragments.iter().filter_map(|f| f["host"].as_str()).collect();
            assert_eq!(hosts.len(), holds.len(), "each on a host of its own");
        }
    }
}
