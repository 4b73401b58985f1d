//! Nodes that keep fragments in memory.

use super::*;
use prost::Message;
use tessera_wire::Code;
use tessera_wire::data::*;

/// A fragment on a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored {
    pub bytes: Bytes,
    pub crc32c: u32,
    pub groups: Bytes,
}

impl Stored {
    /// Flips a bit and leaves the checksum as it is.
    pub fn rot(&mut self, at: usize) {
        let mut bytes = self.bytes.to_vec();
        if !bytes.is_empty() {
            let at = at % bytes.len();
            bytes[at] ^= 1;
        }
        self.bytes = bytes.into();
    }
}

impl Fake {
    pub(super) fn node_call(&mut self, id: u64, call: &Call) -> Result<(Bytes, Bytes), Error> {
        let gone = || Error::new(Code::Unavailable, format!("connection to n{id} broke"));
        if self.nodes.get(&id).is_none_or(|n| n.down) {
            return Err(gone());
        }
        match call.kind {
            Kind::PutFragments => {
                let request = PutFragments::decode(&call.body[..]).unwrap();
                assert_ne!(request.session_id, 0, "a put names its session");
                let mut payload = Bytes::from(call.payload.concat());
                let results = request.items.iter().map(|item| {
                    let bytes = payload.split_to(item.len_bytes as usize);
                    let error = self.put(id, item, bytes).err();
                    PutResult { error, incarnation: 1 }
                });
                let results = results.collect();
                assert!(payload.is_empty());
                Ok((PutFragmentsReply { results }.encode_to_vec().into(), Bytes::new()))
            }
            Kind::GetFragments => {
                let request = GetFragments::decode(&call.body[..]).unwrap();
                let (mut results, mut payload) = (Vec::new(), Vec::new());
                for item in &request.items {
                    match self.get(id, item) {
                        Ok((result, bytes)) => {
                            results.push(result);
                            payload.extend_from_slice(&bytes);
                        }
                        Err(error) => results.push(GetResult { error: Some(error), ..Default::default() }),
                    }
                }
                Ok((GetFragmentsReply { results }.encode_to_vec().into(), payload.into()))
            }
            kind => panic!("no node answers {kind:?}"),
        }
    }

    fn put(&mut self, id: u64, item: &PutItem, bytes: Bytes) -> Result<(), Error> {
        let epoch = self.pgs[&item.pg_id].epoch;
        let node = self.nodes.get_mut(&id).unwrap();
        if let Some(error) = &node.refuse_puts {
            return Err(error.clone());
        }
        if item.epoch < epoch {
            let mut error = Error::new(Code::StaleEpoch, format!("epoch {} is {epoch} now", item.epoch));
            error.current = epoch;
            return Err(error);
        }
        assert_eq!(item.disk_id, node.disk_id);
        assert_eq!(tessera_accel::checksum::crc32c(&bytes), item.crc32c);
        let stored = Stored { bytes, crc32c: item.crc32c, groups: item.groups.clone() };
        // P8: a repeated put of a fragment has no further effect.
        if let Some(before) = node.stored.insert((item.chunk_id, item.fragment), stored.clone()) {
            assert_eq!(before, stored, "chunk {} fragment {} changed", item.chunk_id, item.fragment);
        }
        Ok(())
    }

    fn get(&mut self, id: u64, item: &GetItem) -> Result<(GetResult, Bytes), Error> {
        let node = self.nodes.get_mut(&id).unwrap();
        let found = node.stored.get(&(item.chunk_id, item.fragment)).filter(|_| item.disk_id == node.disk_id);
        let stored = found.ok_or_else(|| Error::new(Code::NotFound, format!("not on disk {}", item.disk_id)))?;
        let (from, to) = match item.whole {
            true => (0, stored.bytes.len()),
            false => (item.offset as usize, (item.offset + item.len_bytes) as usize),
        };
        if to > stored.bytes.len() {
            return Err(Error::new(Code::Invalid, "range passes the fragment's end"));
        }
        let result = GetResult {
            error: None,
            len_bytes: (to - from) as u32,
            fragment_len_bytes: stored.bytes.len() as u32,
            crc32c: stored.crc32c,
            groups: if item.want_groups { stored.groups.clone() } else { Bytes::new() },
        };
        Ok((result, stored.bytes.slice(from..to)))
    }
}
