//! The models that are in memory. A translation page has one or none; if there are more than the memory for them holds, the one that was not
//! used for longest leaves. Its pages are looked up as if they were not learned, until its translation page is read.

use super::model::{Model, Point, model_bytes};
use crate::ftl::{Index, Links, List, Slab};

/// Bytes that name the translation page of a model.
const NUMBER_BYTES: u64 = 4;

/// Models by translation page.
#[derive(Debug)]
pub struct Models {
    slots: Slab<(u32, Model)>,
    slot_of: Index,
    links: Links,
    recent: List,
    /// A bit for each translation page whose model left because there were too many.
    left: Vec<u64>,
    /// The most models.
    capacity: usize,
    /// Entries of a translation page.
    entries: u32,
}

impl Models {
    /// No models, of translation pages with so many entries: for each of `pages`, or as many as `budget` bytes hold.
    pub fn new(pages: u32, entries: u32, budget: u64) -> Self {
        let capacity = (budget / (model_bytes(entries) + NUMBER_BYTES)).min(u64::from(pages)) as usize;
        Models {
            slots: Slab::default(),
            slot_of: Index::default(),
            links: Links::default(),
            recent: List::default(),
            left: vec![0; pages.div_ceil(64) as usize],
            capacity,
            entries,
        }
    }

    /// Bytes of all models that there may be.
    pub fn bytes(&self) -> u64 {
        self.capacity as u64 * (model_bytes(self.entries) + NUMBER_BYTES)
    }

    /// Models.
    pub fn len(&self) -> usize {
        self.slot_of.len()
    }

    fn model(&mut self, page: u32) -> Option<&mut Model> {
        let slot = self.slot_of.get(page)?;
        Some(&mut self.slots[slot].1)
    }

    /// The virtual number of a logical page, if the model of its translation page knows it.
    pub fn predict(&mut self, page: u32, place: u16) -> Option<u32> {
        let slot = self.slot_of.get(page)?;
        let number = self.slots[slot].1.predict(place)?;
        self.links.touch(&mut self.recent, slot);
        Some(number)
    }

    /// A logical page has moved, to a page with a virtual number or without. Returns whether that is predicted now.
    pub fn change(&mut self, page: u32, place: u16, number: Option<u32>) -> bool {
        let Some(model) = self.model(page) else { return false };
        model.clear(place);
        let is_right = number.is_some_and(|number| model.confirm(place, number));
        if model.exact() == 0 {
            self.remove(page);
        }
        is_right
    }

    /// Whether the model of a translation page left because there were too many.
    pub fn has_left(&self, page: u32) -> bool {
        self.left[page as usize / 64] >> (page % 64) & 1 != 0
    }

    fn set_left(&mut self, page: u32, has_left: bool) {
        let (word, bit) = (&mut self.left[page as usize / 64], 1 << (page % 64));
        *word = if has_left { *word | bit } else { *word & !bit };
    }

    /// Learns where all pages of a translation page are; the points are sorted. Returns whether there is a model then: it has to predict
    /// so many of them.
    pub fn train(&mut self, page: u32, points: &[Point], least: u32) -> bool {
        let mut model = Model::default();
        model.train(points, self.entries);
        self.set_left(page, false);
        self.remove(page);
        if self.capacity > 0 && model.exact() >= least.max(1) {
            self.add(page, model);
        }
        self.slot_of.get(page).is_some()
    }

    /// Learns pages that were written one after the other, beside what is known already.
    pub fn train_run(&mut self, page: u32, first: u16, run: std::ops::Range<u32>) -> bool {
        let end = first + run.len() as u16;
        let known = self.model(page).map(|model| model.points().collect::<Vec<_>>()).unwrap_or_default();
        let (before, after) = (known.partition_point(|point| point.0 < first), known.partition_point(|p| p.0 < end));
        let points: Vec<Point> = known[..before]
            .iter()
            .copied()
            .chain((first..end).zip(run))
            .chain(known[after..].iter().copied())
            .collect();
        self.train(page, &points, 1)
    }

    fn add(&mut self, page: u32, model: Model) {
        if self.slot_of.len() == self.capacity {
            let last = self.slots[self.recent.last].0;
            self.remove(last);
            self.set_left(last, true);
        }
        let slot = self.slots.put((page, model));
        self.slot_of.insert(page, slot);
        self.links.push(&mut self.recent, slot);
    }

    fn remove(&mut self, page: u32) {
        if let Some(slot) = self.slot_of.remove(page) {
            self.links.remove(&mut self.recent, slot);
            self.slots.release(slot);
        }
    }

    /// The translation page and the model of each.
    pub fn live(&self) -> impl Iterator<Item = (u32, &Model)> + '_ {
        self.links.slots(&self.recent).map(|slot| (self.slots[slot].0, &self.slots[slot].1))
    }

    /// Checks that no more models are in memory than there may be.
    ///
    /// # Errors
    /// There are, or a model is wrong.
    pub fn check(&self) -> Result<(), String> {
        let count = self.live().count();
        if count != self.len() || count > self.capacity {
            return Err(format!("{count} models are listed, {} counted, of {}", self.len(), self.capacity));
        }
        self.live().try_for_each(|(_, model)| model.check())
    }
}
