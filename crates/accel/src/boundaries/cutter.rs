//! Phase 2: walks a stream and finds the ends of its chunks.

use super::cbch::{Cbch, Search};
use super::dispatch;
use super::{Candidate, MAX_CHUNK_BYTES, Params, Rule, WINDOW_BYTES};
use crate::device::{Device, Work};
use crate::isa::Isa;

const CONTEXT_BYTES: usize = WINDOW_BYTES - 1;

/// Cuts a stream that arrives in buffers of any length. The cuts depend on the stream alone, not on its division into
/// buffers.
#[derive(Clone, Debug)]
pub struct Cutter {
    rule: Rule,
    isa: Isa,
    /// Bytes fed so far.
    position: u64,
    /// Start of the current chunk.
    start: u64,
    /// For `cdc`, the last bytes fed, at most a window less one; for `cbch`, all bytes from `next` on.
    tail: Vec<u8>,
    /// For `cbch`, where the next window starts.
    next: u64,
    found: Vec<Candidate>,
}

impl Cutter {
    /// A cutter at the start of a stream.
    pub fn new(rule: Rule) -> Cutter {
        Cutter::new_on(Isa::best(), rule)
    }

    /// [`Cutter::new`], with phase 1 by the kernels of `isa`; the cuts are the same (P10).
    pub fn new_on(isa: Isa, rule: Rule) -> Cutter {
        Cutter { rule, isa, position: 0, start: 0, tail: Vec::with_capacity(CONTEXT_BYTES), next: 0, found: Vec::new() }
    }

    /// Bytes fed so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Start of the current chunk, which has not ended yet.
    pub fn chunk_start(&self) -> u64 {
        self.start
    }

    /// Takes the next bytes of the stream and appends to `cuts` the end (as an offset in the stream) of each chunk that
    /// is now complete. Skips regions where no cut is possible.
    pub fn feed(&mut self, data: &[u8], cuts: &mut Vec<u64>) {
        match self.rule {
            Rule::Fixed(size) => {
                self.position += data.len() as u64;
                self.cut_every(size as u64, cuts);
            }
            Rule::Cdc(params) => {
                self.search(&params, data, cuts);
                self.remember(data);
            }
            Rule::Cbch(rule) => self.feed_windows(&rule, data, cuts),
        }
    }

    /// [`Cutter::feed`], with phase 1 on a device if the device takes it; the cuts are the same (P10).
    pub fn feed_on(&mut self, device: &dyn Device, data: &[u8], cuts: &mut Vec<u64>) {
        let Rule::Cdc(params) = self.rule else { return self.feed(data, cuts) };
        if device.takes("candidates", data.len()) {
            let mut found = std::mem::take(&mut self.found);
            found.clear();
            device.candidates(&params, &self.tail, data, &mut found);
            self.feed_candidates(data.len(), &found, cuts);
            self.found = found;
            self.remember(data);
        } else {
            device.note("candidates", Work { jobs: 1, bytes: data.len() as u64 });
            self.feed(data, cuts);
        }
    }

    /// Takes the next `len_bytes` of the stream, whose candidates a device has already found (positions count from the
    /// first of these bytes), and appends cuts as [`Cutter::feed`] does. Fixed rules ignore the candidates. A stream is
    /// fed either bytes or candidates, not both. A `cbch` stream is fed bytes; without them only the maximum ends its
    /// chunks.
    pub fn feed_candidates(&mut self, len_bytes: usize, candidates: &[Candidate], cuts: &mut Vec<u64>) {
        let base = self.position;
        self.position += len_bytes as u64;
        match self.rule {
            Rule::Fixed(size) => self.cut_every(size as u64, cuts),
            Rule::Cbch(_) => self.cut_every(MAX_CHUNK_BYTES as u64, cuts),
            Rule::Cdc(params) => {
                for candidate in candidates {
                    let at = base + candidate.position as u64;
                    self.cut_before(&params, at, cuts);
                    if accepts(&params, at.saturating_sub(self.start), candidate.strong) {
                        self.cut(at, cuts);
                    }
                }
                self.cut_before(&params, self.position + 1, cuts);
            }
        }
    }

    /// Ends the stream. Returns the end of its last chunk, or `None` if the stream ended with a cut or is empty. The
    /// cutter is then at the start of a new stream.
    pub fn finish(&mut self) -> Option<u64> {
        let last = (self.position > self.start).then_some(self.position);
        self.position = 0;
        self.start = 0;
        self.next = 0;
        self.tail.clear();
        last
    }

    fn feed_windows(&mut self, rule: &Cbch, data: &[u8], cuts: &mut Vec<u64>) {
        let mut bytes = std::mem::take(&mut self.tail);
        let base = self.position - bytes.len() as u64;
        bytes.extend_from_slice(data);
        self.position += data.len() as u64;
        loop {
            let limit = self.start + MAX_CHUNK_BYTES as u64;
            if self.next >= limit.min(self.position) {
                if self.position < limit {
                    break;
                }
                self.cut(limit, cuts);
                self.next = limit;
                continue;
            }
            let into = (self.next - self.start) as usize;
            match rule.search(self.isa, &bytes[(self.next - base) as usize..], into) {
                Search::End(at) => {
                    self.cut(self.next + at as u64, cuts);
                    self.next = self.start;
                }
                Search::Next(at) => {
                    self.next += at as u64;
                    break;
                }
            }
        }
        bytes.drain(..bytes.len().min((self.next - base) as usize));
        self.tail = bytes;
    }

    fn cut(&mut self, at: u64, cuts: &mut Vec<u64>) {
        let len = at.saturating_sub(self.start);
        assert!(len > 0 && len <= self.rule.max_bytes() as u64, "a chunk from {} to {at}", self.start);
        cuts.push(at);
        self.start = at;
    }

    fn cut_every(&mut self, size: u64, cuts: &mut Vec<u64>) {
        while self.position - self.start >= size {
            self.cut(self.start + size, cuts);
        }
    }

    /// Applies the maximum to everything that ends before `at`.
    fn cut_before(&mut self, params: &Params, at: u64, cuts: &mut Vec<u64>) {
        while at.saturating_sub(self.start) > params.max() as u64 {
            self.cut(self.start + params.max() as u64, cuts);
        }
    }

    fn search(&mut self, params: &Params, data: &[u8], cuts: &mut Vec<u64>) {
        let (base, end) = (self.position, self.position + data.len() as u64);
        self.position = end;
        // Small compared to a chunk, so that little beyond a cut is searched.
        let piece = (params.mean() as u64 / 16).clamp(1024, 64 * 1024);
        let mut from = base;
        loop {
            // Positions (from, to] are searched next: none below the minimum, none beyond the maximum.
            from = from.max(self.start + params.min() as u64 - 1);
            if from >= end {
                break;
            }
            let limit = self.start + params.max() as u64;
            let to = end.min(limit).min(from + piece);
            let found = self.first_cut(params, data, (from - base) as usize..(to - base) as usize);
            let cut = found.map(|offset| base + offset as u64).or((to == limit).then_some(limit));
            from = cut.unwrap_or(to);
            if let Some(at) = cut {
                self.cut(at, cuts);
            }
        }
    }

    /// First position in `data` after `range.start`, up to `range.end`, where the current chunk ends.
    fn first_cut(&mut self, params: &Params, data: &[u8], range: std::ops::Range<usize>) -> Option<usize> {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        // Offset in `data` of position 0 of the searched bytes.
        let mut origin = range.start;
        if range.start >= CONTEXT_BYTES {
            origin -= CONTEXT_BYTES;
            dispatch::scan(self.isa, params, &data[origin..range.end], &mut found);
        } else {
            // The window reaches back into earlier buffers.
            let mut context = self.tail.clone();
            context.extend_from_slice(&data[..range.start]);
            dispatch::candidates(self.isa, params, &context, &data[range.clone()], &mut found);
        }
        let base = self.position - data.len() as u64;
        let start = self.start;
        let cut = found
            .iter()
            .map(|c| (origin + c.position, c.strong))
            .find(|(at, strong)| accepts(params, base + *at as u64 - start, *strong));
        self.found = found;
        cut.map(|(at, _)| at)
    }

    fn remember(&mut self, data: &[u8]) {
        if data.len() >= CONTEXT_BYTES {
            self.tail.clear();
            self.tail.extend_from_slice(&data[data.len() - CONTEXT_BYTES..]);
            return;
        }
        let surplus = (self.tail.len() + data.len()).saturating_sub(CONTEXT_BYTES);
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(data);
    }
}

/// Whether a candidate ends a chunk of `len` bytes: from the minimum to the mean only strong candidates do.
fn accepts(params: &Params, len: u64, strong: bool) -> bool {
    len >= params.min() as u64 && (strong || len >= params.mean() as u64)
}
