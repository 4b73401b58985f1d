//! What a device remembers of its requests to learn from them.

/// The most reads that are remembered; later ones take the place of the oldest, so memory does not grow with the trace.
pub const HISTORY_READS_MAX: usize = 1 << 24;

/// Reads and updates that reached a device.
#[derive(Debug, Default)]
pub struct History {
    reads: Vec<u32>,
    max: usize,
    /// Where the next read goes once there are as many as there may be.
    next: usize,
    updates: Vec<u32>,
    per_page: u32,
}

impl History {
    /// An empty history of a map with `per_page` entries in each of its translation pages.
    pub fn new(translation_pages: u32, per_page: u32) -> Self {
        let updates = vec![0; translation_pages as usize];
        History { reads: Vec::new(), max: HISTORY_READS_MAX, next: 0, updates, per_page }
    }

    /// Notes that a logical page was read.
    pub fn read(&mut self, lpn: u32) {
        if self.reads.len() < self.max {
            return self.reads.push(lpn);
        }
        self.reads[self.next] = lpn;
        self.next = (self.next + 1) % self.max;
    }

    /// Notes that the map entry of a logical page changed.
    pub fn update(&mut self, lpn: u32) {
        let count = &mut self.updates[(lpn / self.per_page) as usize];
        *count = count.saturating_add(1);
    }

    /// The logical pages that were read last, in order.
    pub fn into_reads(mut self) -> Vec<u32> {
        self.reads.rotate_left(self.next);
        self.reads
    }

    /// How often entries of each translation page changed.
    pub fn updates(&self) -> &[u32] {
        &self.updates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_history_keeps_the_last_reads_and_counts_updates_by_page() {
        let mut history = History { max: 3, ..History::new(2, 4) };
        (0..8).for_each(|lpn| history.read(lpn));
        [0, 3, 4].into_iter().for_each(|lpn| history.update(lpn));
        assert_eq!(history.updates(), [2, 1]);
        assert_eq!(history.into_reads(), [5, 6, 7]);
    }
}
