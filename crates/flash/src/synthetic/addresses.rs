//! Where requests go that are neither sequential nor correlated.

use super::PAGE;
use super::draw::{Counted, Zipf, uniform};
use super::profile::Profile;
use super::recency::{PLACES_MAX, Recency};
use crate::permutation::Permutation;
use crate::trace::REGION_BYTES;
use std::ops::Range;
use tessera_disk::SplitMix64;

/// Device and byte.
pub type Place = (u64, u64);

/// A region, by device and number.
type Region = (u64, u64);

/// How often places are used again.
#[derive(Debug)]
enum Reuse {
    /// As long after as in a trace; `None` is a place that was not used before.
    Fitted(Counted<Option<u64>>),
    /// By a Zipf distribution over all pages of the regions.
    Skewed(Zipf),
}

/// Draws places.
#[derive(Debug)]
pub struct Addresses {
    regions: Vec<Region>,
    by_region: Counted<usize>,
    alignment: u64,
    reuse: Reuse,
    recent: Recency<Place>,
    /// The page of each rank: pages that are used often lie apart.
    order: Permutation,
}

/// Pages of the regions.
fn pages(regions: usize) -> u64 {
    regions as u64 * (REGION_BYTES / PAGE)
}

impl Addresses {
    /// Places as a trace has them; with `skew`, the regions are those of the trace, and pages follow a Zipf distribution.
    pub fn fitted(profile: &Profile, skew: Option<f64>) -> Self {
        let reused = profile.reuse.counts().map(|(distance, count)| (Some(distance), count));
        let reuse = match skew {
            None => Reuse::Fitted(Counted::new(reused.chain([(None, profile.new)]))),
            Some(theta) => Reuse::Skewed(Zipf::new(pages(profile.regions.len()), theta)),
        };
        let counts: Vec<(Region, u64)> = profile.regions.iter().map(|(region, count)| (*region, *count)).collect();
        Addresses::new(counts, profile.alignment(), reuse)
    }

    /// Pages of one device of so many bytes, by a Zipf distribution.
    pub fn skewed(footprint: u64, theta: f64) -> Self {
        let regions = footprint.div_ceil(REGION_BYTES).max(1);
        let zipf = Zipf::new(pages(regions as usize), theta);
        Addresses::new((0..regions).map(|region| ((0, region), 1)).collect(), PAGE, Reuse::Skewed(zipf))
    }

    fn new(regions: Vec<(Region, u64)>, alignment: u64, reuse: Reuse) -> Self {
        let count = pages(regions.len());
        Addresses {
            by_region: Counted::new(regions.iter().enumerate().map(|(at, (_, count))| (at, *count))),
            regions: regions.into_iter().map(|(region, _)| region).collect(),
            alignment,
            reuse,
            recent: Recency::new(PLACES_MAX),
            order: Permutation::new(count, 0),
        }
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.regions.len() as u64 * REGION_BYTES
    }

    /// A place for a request of so many bytes, which stays in its region if it fits.
    pub fn draw(&mut self, rng: &mut SplitMix64, bytes: u64) -> Place {
        let place = match &self.reuse {
            Reuse::Fitted(distances) => {
                let distance = distances.draw(rng).flatten();
                distance.and_then(|distance| self.recent.at(distance as usize))
            }
            Reuse::Skewed(zipf) => Some(self.page(zipf.draw(rng))),
        };
        place.unwrap_or_else(|| self.any(rng, bytes))
    }

    /// The page of a rank.
    fn page(&self, rank: u64) -> Place {
        let page = self.order.at(rank);
        let (region, page) = (page / (REGION_BYTES / PAGE), page % (REGION_BYTES / PAGE));
        let (device, region) = self.regions[region as usize];
        (device, region * REGION_BYTES + page * PAGE)
    }

    /// A place in a region that is drawn as often as it was touched.
    fn any(&self, rng: &mut SplitMix64, bytes: u64) -> Place {
        let (device, region) = self.regions[self.by_region.draw(rng).unwrap_or(0)];
        let room = REGION_BYTES.saturating_sub(bytes) / self.alignment;
        let step = (uniform(rng) * (room + 1) as f64) as u64;
        (device, region * REGION_BYTES + step * self.alignment)
    }

    /// Neighbouring regions that make up so many bytes, or all.
    pub fn cluster(&self, rng: &mut SplitMix64, bytes: Option<u64>) -> Range<usize> {
        let all = self.regions.len();
        let count = bytes.map_or(all, |bytes| bytes.div_ceil(REGION_BYTES).clamp(1, all as u64) as usize);
        let start = rng.below((all - count + 1) as u64) as usize;
        start..start + count
    }

    /// A page in some of the regions.
    pub fn page_in(&self, rng: &mut SplitMix64, regions: &Range<usize>) -> Place {
        let (device, region) = self.regions[regions.start + rng.below(regions.len() as u64) as usize];
        (device, region * REGION_BYTES + rng.below(REGION_BYTES / PAGE) * PAGE)
    }

    /// Notes what a request touched, whatever chose its place.
    pub fn touch(&mut self, place: Place) {
        if matches!(self.reuse, Reuse::Fitted(_)) {
            self.recent.touch(place);
        }
    }

    /// The place, moved back if a request of so many bytes would end in a region that is not touched.
    pub fn clip(&self, (device, offset): Place, bytes: u64) -> Place {
        if self.holds(device, offset + bytes) {
            return (device, offset);
        }
        let end = (offset / REGION_BYTES + 1) * REGION_BYTES;
        (device, end.saturating_sub(bytes))
    }

    /// Whether a request that ends there lies in a region that the trace touches.
    pub fn holds(&self, device: u64, end: u64) -> bool {
        self.regions.binary_search(&(device, (end - 1) / REGION_BYTES)).is_ok()
    }
}
