//! Inventories: the manager learns page by page what a disk holds, and names the fragments that do not belong there
//! (P3, P5).

use super::event::ManagerMark;
use super::ops::{DiskOp, DiskReply, FragmentKey, reply};
use super::tasks::{TaskState, Work};
use super::{CallPurpose, NodeCore, OpPurpose};
use crate::config::ms;
use tessera_wire::meta::FragmentRef;
use tessera_wire::meta::Inventory;
use tessera_wire::rpc::{Answer, Peer};
use tessera_wire::{Code, Error};

/// Delay after an unanswered page.
const RETRY_MS: u64 = 1_000;

#[derive(Debug)]
pub(super) struct InventoryWork {
    disk: usize,
    disk_id: u64,
    after: Option<FragmentKey>,
    page: Page,
}

#[derive(Debug)]
enum Page {
    /// The page is to be listed.
    Wanted,
    /// The disk is listing it.
    Listing,
    /// The page is to be sent at this time.
    Listed { held: Vec<FragmentKey>, last: bool, at_ns: i64 },
    /// The page is sent and not answered yet.
    Sent { held: Vec<FragmentKey>, last: bool },
}

impl InventoryWork {
    pub(super) fn new(disk: usize, disk_id: u64) -> Self {
        InventoryWork { disk, disk_id, after: None, page: Page::Wanted }
    }

    pub(super) fn retry_at_ns(&self) -> Option<i64> {
        match self.page {
            Page::Listed { at_ns, .. } => Some(at_ns),
            _ => None,
        }
    }
}

impl NodeCore {
    fn inventory_of(&mut self, number: u64) -> Option<&mut InventoryWork> {
        match self.tasks.get(number) {
            Some(TaskState { work: Work::Inventory(work), finished: false, .. }) => Some(work),
            _ => None,
        }
    }

    pub(super) fn run_inventory(&mut self, number: u64) -> bool {
        let (limit, now_ns) = (self.config.inventory_page.max(1), self.now_ns);
        let Some(work) = self.inventory_of(number) else { return false };
        let (disk, disk_id, after) = (work.disk, work.disk_id, work.after);
        match std::mem::replace(&mut work.page, Page::Listing) {
            Page::Wanted => self.disk_op(disk, DiskOp::List { after, limit }, OpPurpose::List { task: number }),
            Page::Listed { held, last, at_ns } if now_ns >= at_ns => {
                let message = Inventory {
                    after: after.map(|key| key.on_disk(disk_id)),
                    held: held.iter().map(|key| key.on_disk(disk_id)).collect(),
                    disk_id,
                    last,
                    ..Inventory::default()
                };
                work.page = Page::Sent { held, last };
                let it = &self.membership;
                let message = Inventory { node_id: it.node_id, incarnation: it.incarnation, ..message };
                let purpose = CallPurpose::Inventory { task: number, mark: self.mark };
                self.call(Peer::Manager, &message, self.config.inventory_timeout_ms, purpose);
            }
            waiting => work.page = waiting,
        }
        false
    }

    pub(super) fn on_listed(&mut self, number: u64, result: Result<DiskReply, Error>) {
        let at_ns = self.now_ns;
        // The task may be gone.
        let Some(work) = self.inventory_of(number) else { return };
        match reply!(result, DiskReply::Listed { held, last } => (held, last)) {
            Ok((held, last)) => {
                assert!(held.is_sorted(), "a disk lists its fragments in order");
                work.page = Page::Listed { held, last, at_ns };
            }
            Err(error) => self.finish_task(number, &error.message),
        }
    }

    pub(super) fn on_inventory_answered(&mut self, number: u64, asked_at: ManagerMark, answer: Answer) {
        let retry_at_ns = self.now_ns.saturating_add(ms(RETRY_MS));
        let Some(work) = self.inventory_of(number) else { return };
        let Page::Sent { held, last } = std::mem::replace(&mut work.page, Page::Wanted) else { return };
        match answer.decode::<Inventory>() {
            Ok((reply, _)) => {
                if let Some(end) = held.last() {
                    assert!(
                        work.after < Some(*end),
                        "a page of the inventory ends at {end:?}, before {:?}",
                        work.after
                    );
                    work.after = Some(*end);
                }
                // An empty page that is not the last would be listed forever.
                let last = last || held.is_empty();
                let disk_id = work.disk_id;
                let mark = ManagerMark { term: reply.term, log_seq: reply.log_seq };
                if !self.admit_manager(mark, asked_at) {
                    return self.finish_task(number, "the manager's metadata went backwards");
                }
                let remove: Vec<FragmentRef> =
                    reply.remove.into_iter().map(|it| FragmentRef { disk_id, ..it }).collect();
                self.delete_all(&remove);
                if last {
                    self.finish_task(number, "");
                }
            }
            Err(error) if error.is_retryable() => work.page = Page::Listed { held, last, at_ns: retry_at_ns },
            Err(error) => {
                // The next heartbeat tells whether this incarnation is over.
                tracing::warn!(%error, "the manager refused an inventory page");
                let fenced = matches!(error.code(), Code::NotRegistered | Code::Fenced);
                self.finish_task(number, if fenced { "fenced" } else { &error.message });
            }
        }
    }
}
