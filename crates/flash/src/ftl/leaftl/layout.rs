//! Which groups a translation page has. Groups that learning made small share a page with many others; a page whose
//! groups have outgrown it is divided.

use std::ops::Range;

/// Groups of a translation page before it is divided; more would not fit even if each had one segment.
const GROUPS_FIRST: u32 = 256;

/// Groups and their translation pages.
#[derive(Debug)]
pub struct Layout {
    /// The page of each group.
    page_of: Vec<u32>,
    /// The groups of each page.
    pages: Vec<Range<u32>>,
    page_bytes: u64,
}

impl Layout {
    /// The layout of groups that are empty.
    pub fn new(groups: u32, page_bytes: u64) -> Self {
        let pages =
            (0..groups).step_by(GROUPS_FIRST as usize).map(|first| first..groups.min(first + GROUPS_FIRST)).collect();
        Layout { page_of: (0..groups).map(|group| group / GROUPS_FIRST).collect(), pages, page_bytes }
    }

    /// The page of a group.
    pub fn page_of(&self, group: u32) -> u32 {
        self.page_of[group as usize]
    }

    /// Pages with groups.
    pub fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// The groups of a page.
    pub fn groups(&self, page: u32) -> Range<u32> {
        self.pages[page as usize].clone()
    }

    /// Divides a page if its groups do not fit; returns the pages that were added. No group has more than a page.
    pub fn divide(&mut self, page: u32, bytes: impl Fn(u32) -> u64) -> Range<u32> {
        let added = self.pages.len() as u32;
        let groups = self.groups(page);
        let total: u64 = groups.clone().map(&bytes).sum();
        if total > self.page_bytes {
            // Pages are left a quarter empty, to grow.
            let parts = total.div_ceil(self.page_bytes * 3 / 4);
            let (target, mut sum, mut start) = (total.div_ceil(parts), 0, groups.start);
            for group in groups.clone() {
                let next = bytes(group);
                if group > start && (sum >= target || sum + next > self.page_bytes) {
                    self.cut(page, start..group);
                    (sum, start) = (0, group);
                }
                sum += next;
            }
            self.cut(page, start..groups.end);
        }
        added..self.pages.len() as u32
    }

    /// Gives groups a page: the one that they had if they are its first ones, or a new one.
    fn cut(&mut self, page: u32, groups: Range<u32>) {
        if groups.start == self.pages[page as usize].start {
            self.pages[page as usize] = groups;
            return;
        }
        self.page_of[groups.start as usize..groups.end as usize].fill(self.pages.len() as u32);
        self.pages.push(groups);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pages_hold_all_groups_and_none_too_many(grown in prop::collection::vec((0u32..600, 0u64..100), 1..400)) {
            let (mut layout, mut bytes) = (Layout::new(600, 1000), vec![0; 600]);
            for (group, more) in grown {
                let size: &mut u64 = &mut bytes[group as usize];
                *size = (*size + more).min(560);
                let page = layout.page_of(group);
                let added = layout.divide(page, |group| bytes[group as usize]);
                for page in added.chain([page]) {
                    let groups = layout.groups(page);
                    prop_assert!(!groups.is_empty() && groups.clone().all(|group| layout.page_of(group) == page));
                    prop_assert!(groups.map(|group| bytes[group as usize]).sum::<u64>() <= 1000);
                }
            }
            prop_assert_eq!(layout.pages.iter().map(|groups| groups.len()).sum::<usize>(), 600);
        }
    }
}
