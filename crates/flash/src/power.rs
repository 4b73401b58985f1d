//! Power cuts: what is in no flash cell is lost, and the map is recovered from out-of-band areas.
//!
//! Every layer recovers alike. A page whose write was acknowledged is on flash with its logical page and order number, unless a write
//! buffer still has it; so the newest page of each logical page is the one that counts. Translation pages may lag behind by what a layer held in
//! its cache, so the recovered map is written to new ones. A cut during recovery changes nothing: data pages stay as they are.
//!
//! What a layer learned is in no out-of-band area, so a lesson ([`Ssd::plan_learning`]) begins again.
//!
//! A TRIM leaves no trace in an out-of-band area. After a cut a page that was trimmed and not written since may hold something that
//! it held before.

use crate::collect::Collector;
use crate::config::{Config, ConfigError};
use crate::device::{Ns, Operation};
use crate::ftl::{Directory, NONE};
use crate::ssd::Ssd;

impl Ssd {
    /// Cuts the power and recovers. Returns how long that takes from the return of the power on; time begins anew then.
    pub fn cut_power(&mut self) -> Ns {
        self.cache_before = self.cache();
        let map = self.device.recover();
        self.ftl = (self.make)(&self.device, &self.config);
        let Config { policy, background, wear_levelling, .. } = self.config;
        let moved = self.collector.moved;
        self.collector = Collector::new(&self.device, policy, background, wear_levelling);
        self.collector.moved = moved;
        self.mapped = map.iter().filter(|ppn| **ppn != NONE).count() as u64;
        self.content = map.iter().filter(|ppn| **ppn != NONE).map(|ppn| self.device.content(*ppn)).max().unwrap_or(0);
        (self.second_lookups, self.second_hits) = (0, 0);
        if let Some(buffer) = &mut self.buffer {
            buffer.clear();
        }
        self.ftl.restore(&self.device, &map);
        drop(map);
        for page in 0..self.ftl.directory().map_or(0, Directory::pages) {
            self.collector.make_room(&mut self.device, &mut *self.ftl);
            self.ftl.checkpoint(&mut self.device, page);
        }
        self.repeat_lesson();
        let end = self.device.now();
        self.device.schedule.reset();
        self.device.set_now(0);
        end
    }

    /// Keeps a list of all operations that change flash, beginning now.
    pub fn record(&mut self) {
        self.device.journal = Some(Vec::new());
    }

    /// The operations since [`Ssd::record`].
    pub fn recorded(&self) -> &[Operation] {
        self.device.journal.as_deref().unwrap_or_default()
    }

    /// The SSD after a power cut that followed these operations on a new device, once it has recovered. If `is_torn`, the last
    /// of them was cut half-way: the page is unreadable, or all pages of the block.
    ///
    /// # Errors
    /// The configuration makes no SSD.
    pub fn after_cut(config: &Config, operations: &[Operation], is_torn: bool) -> Result<Ssd, ConfigError> {
        let mut ssd = Ssd::new(config)?;
        ssd.device.replay(operations, is_torn);
        ssd.cut_power();
        Ok(ssd)
    }
}
