//! The records of one partition, and how many of its records were sampled.

use super::record::Record;
use crate::estimate::PartitionSample;
use crate::schedule::Shuffle;
use rand::rngs::StdRng;

/// Records of a partition that a sample takes at least: without two there is no variance.
const MIN_RECORDS: u64 = 2;

/// A partition's records.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part<T> {
    pub(super) items: Vec<T>,
    /// `None`: all records are here, or what a filter left of them.
    sample: Option<RowSample>,
}

/// A sample inside a partition. A *slot* is a record that was drawn; a filter may have emptied it, and `flat_map` may have
/// put several items into it.
#[derive(Debug, Clone, PartialEq)]
struct RowSample {
    /// Records before the sample (M).
    records: u64,
    /// Slots (m).
    sampled: u64,
    /// The slot of each item, ascending; `None` if each item has its own.
    slots: Option<Vec<u32>>,
}

impl<T> Part<T> {
    pub(super) fn whole(items: Vec<T>) -> Part<T> {
        Part { items, sample: None }
    }

    pub(super) fn map<U>(self, f: impl FnMut(T) -> U) -> Part<U> {
        Part { items: self.items.into_iter().map(f).collect(), sample: self.sample }
    }

    pub(super) fn flat_map<U, I: IntoIterator<Item = U>>(self, f: impl Fn(T) -> I) -> Part<U> {
        let Some(mut sample) = self.sample else {
            return Part::whole(self.items.into_iter().flat_map(f).collect());
        };
        let (mut items, mut slots) = (Vec::new(), Vec::new());
        for (i, item) in self.items.into_iter().enumerate() {
            let slot = sample.slots.as_ref().map_or(i as u32, |slots| slots[i]);
            items.extend(f(item));
            slots.resize(items.len(), slot);
        }
        sample.slots = Some(slots);
        Part { items, sample: Some(sample) }
    }

    pub(super) fn filter(self, keep: impl Fn(&T) -> bool) -> Part<T> {
        let kept: Vec<bool> = self.items.iter().map(keep).collect();
        self.keep(&kept)
    }

    fn keep(mut self, kept: &[bool]) -> Part<T> {
        let mut each = kept.iter();
        self.items.retain(|_| *each.next().expect("one for each item"));
        if let Some(slots) = self.sample.as_mut().and_then(|sample| sample.slots.as_mut()) {
            let mut each = kept.iter();
            slots.retain(|_| *each.next().expect("one for each item"));
        }
        self
    }

    /// Draws records without replacement. A sample of a sample draws slots, the empty ones too, so that it is a sample of
    /// the partition's records as well.
    pub(super) fn sample(mut self, ratio: f64, rng: &mut StdRng) -> Part<T> {
        let here = self.sample.as_ref().map_or(self.items.len() as u64, |sample| sample.sampled);
        let wanted = ((here as f64 * ratio).round() as u64).max(MIN_RECORDS).min(here);
        if wanted == here {
            return self;
        }
        let mut drawn = vec![false; here as usize];
        let mut shuffle = Shuffle::new(here);
        (0..wanted).map_while(|_| shuffle.next(rng)).for_each(|slot| drawn[slot as usize] = true);
        let mut sample = self.sample.take().unwrap_or(RowSample { records: here, sampled: here, slots: None });
        let slot_of = |i: usize| sample.slots.as_ref().map_or(i, |slots| slots[i] as usize);
        let kept: Vec<bool> = (0..self.items.len()).map(|i| drawn[slot_of(i)]).collect();
        sample.sampled = wanted;
        let mut part = Part { items: self.items, sample: Some(sample) }.keep(&kept);
        part.number_slots(&drawn);
        part
    }

    /// Slots that were drawn get the numbers from 0.
    fn number_slots(&mut self, drawn: &[bool]) {
        let Some(slots) = self.sample.as_mut().and_then(|sample| sample.slots.as_mut()) else { return };
        let mut numbers = Vec::with_capacity(drawn.len());
        let mut next = 0;
        for drawn in drawn {
            numbers.push(next);
            next += u32::from(*drawn);
        }
        slots.iter_mut().for_each(|slot| *slot = numbers[*slot as usize]);
    }

    /// What equations 1.1 to 1.3 need of a partition.
    pub(super) fn moments(&self, value: impl Fn(&T) -> f64) -> PartitionSample {
        let values = self.items.iter().map(value);
        let Some(sample) = &self.sample else {
            // A partition without records is one whose total is known to be 0.
            let records = self.items.len() as u64;
            let (sum, squares) = values.fold((0.0, 0.0), |(sum, squares), v| (sum + v, squares + v * v));
            return PartitionSample { records, sampled: records.max(1), sum, squares };
        };
        let (mut sum, mut squares, mut slot_sum, mut last) = (0.0, 0.0, 0.0, None);
        for (i, v) in values.enumerate() {
            let slot = sample.slots.as_ref().map_or(i as u32, |slots| slots[i]);
            if last != Some(slot) {
                squares += slot_sum * slot_sum;
                (slot_sum, last) = (0.0, Some(slot));
            }
            slot_sum += v;
            sum += v;
        }
        squares += slot_sum * slot_sum;
        PartitionSample { records: sample.records, sampled: sample.sampled, sum, squares }
    }
}

impl<T: Record> Part<T> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let (records, sampled, slots) = match &self.sample {
            None => (0, 0, &None),
            Some(sample) => (sample.records, sample.sampled, &sample.slots),
        };
        for number in [self.items.len() as u64, records, sampled, u64::from(slots.is_some())] {
            number.encode(&mut out);
        }
        slots.iter().flatten().for_each(|slot| slot.encode(&mut out));
        self.items.iter().for_each(|item| item.encode(&mut out));
        out
    }

    /// `None` if the bytes are not those that [`Part::encode`] gave.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Part<T>> {
        let bytes = &mut bytes;
        let [len, records, sampled, has_slots] =
            [u64::decode(bytes)?, u64::decode(bytes)?, u64::decode(bytes)?, u64::decode(bytes)?];
        let slots =
            if has_slots == 1 { Some((0..len).map(|_| u32::decode(bytes)).collect::<Option<_>>()?) } else { None };
        let items = (0..len).map(|_| T::decode(bytes)).collect::<Option<Vec<T>>>()?;
        let sample = (records > 0).then_some(RowSample { records, sampled, slots });
        bytes.is_empty().then_some(Part { items, sample })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn rng(seed: u64) -> StdRng {
        StdRng::seed_from_u64(seed)
    }

    #[test]
    fn a_sample_has_the_number_that_the_ratio_says() {
        for (records, ratio, expected) in
            [(100, 0.1, 10), (100, 0.001, 2), (3, 0.5, 2), (1, 0.1, 1), (0, 0.1, 0), (7, 1.0, 7)]
        {
            let part = Part::whole((0..records).collect()).sample(ratio, &mut rng(1));
            assert_eq!(part.items.len(), expected, "{ratio} of {records}");
            let moments = part.moments(|_| 1.0);
            assert_eq!(moments.records as i32, records);
            assert_eq!(moments.sampled as usize, expected.max(1));
        }
    }

    #[test]
    fn each_record_is_drawn_equally_often_by_a_sample_of_a_filtered_sample() {
        let mut times = [0u32; 20];
        for seed in 0..8000 {
            let part = Part::whole((0..20usize).collect()).sample(0.5, &mut rng(seed));
            let part = part.filter(|v| v % 2 == 0).sample(0.4, &mut rng(seed + 1_000_000));
            let moments = part.moments(|_| 1.0);
            assert_eq!((moments.records, moments.sampled), (20, 4));
            part.items.iter().for_each(|v| times[*v] += 1);
        }
        for (v, times) in times.into_iter().enumerate() {
            let expected = if v % 2 == 0 { 1450..1750 } else { 0..1 };
            assert!(expected.contains(&times), "{v}: {times}");
        }
    }

    #[test]
    fn items_of_one_drawn_record_count_as_one_value() {
        let part = Part::whole(vec![1u64, 2, 3, 4]).sample(0.5, &mut rng(7));
        let values: Vec<f64> = part.items.iter().map(|v| *v as f64).collect();
        let twice = part.flat_map(|v| [v, v]).filter(|v| *v > 0);
        let moments = twice.moments(|v| *v as f64);
        assert_eq!((moments.records, moments.sampled), (4, 2));
        assert_eq!(moments.squares, values.iter().map(|v| 4.0 * v * v).sum::<f64>());
        assert_eq!(twice.items.len(), 4);
        let back = Part::decode(&twice.encode()).unwrap();
        assert_eq!(back, twice);
        assert!(Part::<u64>::decode(&twice.encode()[1..]).is_none());
    }
}
