//! Puts: fenced on arrival, stored by the disks, fenced again before they are acknowledged (P11).

use super::ops::{DiskOp, DiskReply, reply};
use super::{NodeCore, OpPurpose};
use crate::check::CheckedPut;
use std::collections::BTreeMap;
use tessera_stripe::{ClassLayout, StoredFragment};
use tessera_wire::data::{PutFragmentsReply, PutResult};
use tessera_wire::{Code, Error};

/// A put whose fragments the disks are writing.
#[derive(Debug)]
pub(super) struct PendingPut {
    request: u64,
    incarnation: u64,
    slots: Vec<Slot>,
    open_ops: usize,
}

/// The facts about a fragment that the fences need, and its result.
#[derive(Debug)]
struct Slot {
    pg_id: u64,
    epoch: u64,
    fragment: u32,
    disk_id: u64,
    /// What to acknowledge once it is stored.
    receipt: u64,
    fate: Option<Result<(), Error>>,
}

impl NodeCore {
    pub(super) fn on_put(&mut self, request: u64, put: CheckedPut) {
        let bytes = put.len_bytes();
        let refusal = self.check_lease().err().or_else(|| {
            (self.waiting_put_bytes + bytes > self.config.max_waiting_put_bytes && self.waiting_put_bytes > 0)
                .then(|| Error::new(Code::Unavailable, "too many bytes wait for this node's disks; ask again"))
        });
        if let Some(error) = refusal {
            self.counters.puts_refused += 1;
            return self.out.push_back(super::Action::Reply { request, result: Err(error) });
        }
        let mut slots = Vec::with_capacity(put.items.len());
        let mut by_disk: BTreeMap<usize, (Vec<usize>, Vec<super::AppendItem>)> = BTreeMap::new();
        for (slot, (disk_id, item)) in put.items.into_iter().enumerate() {
            let fate = match self.place(disk_id, &item) {
                Ok(disk) => {
                    let target = &self.disks[disk];
                    assert!(target.disk_id == disk_id && target.failed.is_none(), "disk {disk_id} takes no puts");
                    let (numbers, items) = by_disk.entry(disk).or_default();
                    numbers.push(slot);
                    slots.push(self.slot(disk_id, &item));
                    items.push(item);
                    continue;
                }
                Err(error) => Some(Err(error)),
            };
            slots.push(Slot { fate, ..self.slot(disk_id, &item) });
        }
        let put_id = self.fresh_id();
        let open_ops = by_disk.len();
        self.puts.insert(put_id, PendingPut { request, incarnation: self.membership.incarnation, slots, open_ops });
        for (disk, (slots, items)) in by_disk {
            assert_eq!(slots.len(), items.len(), "each fragment of a put has its slot");
            let bytes: u64 = items.iter().map(|item| item.data.len() as u64).sum();
            self.waiting_put_bytes += bytes;
            let op = DiskOp::Append { sync: put.sync, items };
            self.disk_op(disk, op, OpPurpose::Put { put_id, slots, bytes });
        }
        if open_ops == 0 {
            self.finish_put(put_id);
        }
    }

    /// Returns the disk for a fragment, or the error of the fence or limit that refuses it.
    fn place(&self, disk_id: u64, item: &super::AppendItem) -> Result<usize, Error> {
        let Some(disk) = self.disk_index(disk_id) else {
            return Err(Error::new(
                Code::NotFound,
                format!("disk {disk_id} is not served by this node; ask the manager for the map again"),
            ));
        };
        if let Some(reason) = &self.disks[disk].failed {
            return Err(Error::new(Code::Io, format!("disk {disk_id} takes no more writes: {reason}")));
        }
        if let Some(class) = self.cluster.classes.get(&item.meta.class_id) {
            let (chunk_len, fragment) = (item.meta.chunk_len_bytes, item.key.fragment);
            let expected = class.fragment_bytes(chunk_len, fragment);
            let offset = class.plain_offset(chunk_len, fragment);
            if item.offset != offset {
                let said = |at: Option<u64>| at.map_or("parity".into(), |at| format!("bytes from {at} on"));
                return Err(Error::new(
                    Code::Invalid,
                    format!(
                        "chunk {} fragment {fragment}: sent as {}, but class {} makes it {}",
                        item.key.chunk_id,
                        said(item.offset),
                        class.spec,
                        said(offset)
                    ),
                ));
            }
            if expected != Some(item.data.len() as u64) {
                return Err(Error::new(
                    Code::Invalid,
                    format!(
                        "chunk {} fragment {}: {} bytes, but class {} gives it {}",
                        item.key.chunk_id,
                        item.key.fragment,
                        item.data.len(),
                        class.spec,
                        expected.map_or("no such fragment".into(), |n| format!("{n} bytes")),
                    ),
                ));
            }
        }
        self.check_epoch(item.meta.pg_id, item.meta.epoch, item.key.fragment, disk_id)?;
        Ok(disk)
    }

    /// Refuses a fragment sent under an outdated map, if this node knows a newer one (P11).
    fn check_epoch(&self, pg_id: u64, epoch: u64, fragment: u32, disk_id: u64) -> Result<(), Error> {
        let Some(pg) = self.cluster.pgs.get(&pg_id) else { return Ok(()) };
        // If the client's epoch is newer than this node's, the manager decides at commit.
        if epoch > pg.epoch {
            return Ok(());
        }
        let member = pg.members.get(fragment as usize);
        let stale = member.is_none_or(|m| !m.accepts(epoch) || m.put_disk_id() != disk_id);
        if !stale {
            return Ok(());
        }
        Err(Error {
            current: pg.epoch,
            ..Error::new(
                Code::StaleEpoch,
                format!(
                    "group {pg_id}: fragment {fragment} was sent to disk {disk_id} under epoch {epoch}, the group is at {}; ask the manager for the map again",
                    pg.epoch
                ),
            )
        })
    }

    pub(super) fn on_put_stored(&mut self, put_id: u64, slots: &[usize], bytes: u64, result: Result<DiskReply, Error>) {
        assert!(self.waiting_put_bytes >= bytes, "{bytes} bytes stored of {} that wait", self.waiting_put_bytes);
        self.waiting_put_bytes -= bytes;
        let Some(put) = self.puts.get_mut(&put_id) else { return };
        let fates = reply!(result, DiskReply::Appended(fates) => fates);
        let fates = fates.unwrap_or_else(|error| vec![Err(error); slots.len()]);
        assert_eq!(fates.len(), slots.len(), "each fragment of an append has its result");
        for (&slot, fate) in slots.iter().zip(fates) {
            let before = put.slots[slot].fate.replace(fate);
            assert!(before.is_none(), "two disks answered for slot {slot} of a put");
        }
        assert!(put.open_ops > 0, "a put that was complete got another result");
        put.open_ops -= 1;
        if put.open_ops == 0 {
            self.finish_put(put_id);
        }
    }

    fn slot(&self, disk_id: u64, item: &super::AppendItem) -> Slot {
        let stored = StoredFragment {
            chunk_id: item.key.chunk_id,
            fragment: item.key.fragment,
            disk_id,
            epoch: item.meta.epoch,
            name: &item.meta.chunk_hash,
            chunk_len: item.meta.chunk_len_bytes,
            offset: item.offset,
            len: item.data.len() as u64,
        };
        Slot {
            pg_id: item.meta.pg_id,
            epoch: item.meta.epoch,
            fragment: item.key.fragment,
            disk_id,
            receipt: stored.receipt(&self.membership.receipt_key),
            fate: None,
        }
    }

    /// Completes a put once all disks have answered. Acknowledges stored fragments only if the lease still lasts, the
    /// incarnation is the same, and their epochs still count (P11). Repeating the put later is idempotent (P8).
    fn finish_put(&mut self, put_id: u64) {
        let Some(put) = self.puts.remove(&put_id) else { return };
        let lease = match put.incarnation == self.membership.incarnation {
            true => self.check_lease(),
            false => Err(Error::new(Code::Unavailable, "this node has registered anew meanwhile; send it again")),
        };
        if let Err(error) = lease {
            self.counters.puts_refused += 1;
            return self.out.push_back(super::Action::Reply { request: put.request, result: Err(error) });
        }
        assert_eq!(put.open_ops, 0, "a put is answered while disks still work on it");
        let mut results = Vec::with_capacity(put.slots.len());
        for slot in put.slots {
            let epoch = self.check_epoch(slot.pg_id, slot.epoch, slot.fragment, slot.disk_id);
            let fate = slot.fate.unwrap_or_else(|| Err(Error::new(Code::Internal, "no disk answered for it")));
            let error = fate.and(epoch).err();
            match error {
                None => self.counters.fragments_stored += 1,
                Some(_) => self.counters.fragments_refused += 1,
            }
            let receipt = if error.is_none() { slot.receipt } else { 0 };
            results.push(PutResult { error, incarnation: put.incarnation, receipt });
        }
        // After an acknowledgement the manager relies on the fragment, so the lease and the incarnation must hold here.
        assert!(self.now_ns < self.membership.lease_until_ns, "a put is acknowledged without a lease");
        assert_eq!(put.incarnation, self.membership.incarnation, "a put of an earlier incarnation is acknowledged");
        self.reply(put.request, &PutFragmentsReply { results });
    }
}
