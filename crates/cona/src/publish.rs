//! Makes a new cell part of the store: first in the manifest, then for readers.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tessera_failpoint as failpoint;

use crate::buffer::Buffer;
use crate::cell::Cell;
use crate::error::Error;
use crate::manifest::{Entry, Manifest};
use crate::state::{Shared, State};

impl Shared {
    /// Replaces `inputs` by a new cell (or adds the cell of a buffer on top), first in the manifest, then for readers.
    pub(crate) fn publish(
        &self,
        inputs: &[Arc<Cell>],
        cell: Option<Cell>,
        buffer: Option<&Arc<Buffer>>,
    ) -> Result<(), Error> {
        let mut flushed_seq = self.flushed_seq.lock();
        let cell = cell.map(Arc::new);
        let state = self.current();
        let of_inputs = |count: fn(&Cell) -> u64| inputs.iter().map(|c| count(c)).sum::<u64>();
        if let (Some(cell), None) = (&cell, buffer) {
            assert!(cell.footer.records <= of_inputs(|c| c.footer.records), "a merge made records");
            assert!(cell.footer.user_bytes <= of_inputs(|c| c.footer.user_bytes), "a merge made bytes");
        }
        assert!(
            state.cells.iter().all(|c| Some(c.number()) != cell.as_ref().map(|c| c.number())),
            "a cell is published twice"
        );
        let gone: HashSet<u64> = inputs.iter().map(|c| c.number()).collect();
        let at = state.cells.iter().position(|c| gone.contains(&c.number())).unwrap_or(0);
        let neighbours = state.cells.iter().skip(at).take(inputs.len());
        assert!(
            neighbours.zip(inputs).all(|(cell, input)| cell.number() == input.number()),
            "merged cells are neighbours"
        );
        let mut cells: Vec<Arc<Cell>> = state.cells.iter().filter(|c| !gone.contains(&c.number())).cloned().collect();
        assert!(cells.len() + inputs.len() == state.cells.len(), "a merged cell is gone before its merge ends");
        if let Some(cell) = &cell {
            cells.insert(at, cell.clone());
        }
        let flushed = buffer.map_or(*flushed_seq, |b| b.last_seq().max(*flushed_seq));
        let entry = |c: &Arc<Cell>| Entry { number: c.number(), file_bytes: c.footer.file_bytes(), level: c.level };
        let manifest = Manifest {
            next_file: self.next_file.load(Ordering::Relaxed),
            flushed_seq: flushed,
            cells: cells.iter().map(entry).collect(),
        };
        let written = if self.context.durable { self.write_manifest(&manifest) } else { Ok(0) };
        let written = written.inspect_err(|_| self.discard_unnamed(cell.as_ref()))?;
        self.context.counters.manifest_bytes.fetch_add(written, Ordering::Relaxed);
        assert!(flushed >= *flushed_seq, "flushed batches go back from {flushed_seq} to {flushed}");
        *flushed_seq = flushed;
        let version = state.version + u64::from(buffer.is_some());
        if let Some(buffer) = buffer {
            self.cache.begin(version);
            if !failpoint::is_active("cona.stale_cache") {
                let _ = buffer.for_each(|key, _| {
                    self.cache.remove(key);
                    Ok::<(), Error>(())
                });
            }
        }
        drop(state);
        for owned in inputs.iter().flat_map(|input| &input.values) {
            let kept = cell.as_ref().is_some_and(|cell| cell.owns(owned.file.number));
            owned.file.obsolete.store(!kept, Ordering::Release);
        }
        let cells = Arc::new(cells);
        self.change_state(|state| State {
            active: state.active.clone(),
            frozen: state.frozen.iter().filter(|b| buffer.is_none_or(|gone| !Arc::ptr_eq(b, gone))).cloned().collect(),
            cells,
            version,
        });
        for input in inputs {
            input.obsolete.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The new cell's name must be durable before the manifest names it.
    fn write_manifest(&self, manifest: &Manifest) -> Result<u64, Error> {
        self.context.disk.sync_dir(&self.context.dir)?;
        manifest.write(&self.context)
    }

    /// After a failed change of the manifest, removes the new cell unless the manifest on disk names it.
    fn discard_unnamed(&self, cell: Option<&Arc<Cell>>) {
        if let (Some(cell), Ok(Some(manifest))) = (cell, Manifest::read(&self.context))
            && manifest.cells.iter().all(|entry| entry.number != cell.number())
        {
            discard(cell);
        }
    }
}

/// Removes a cell that nothing names.
pub(crate) fn discard(cell: &Cell) {
    cell.obsolete.store(true, Ordering::Release);
    // Its other value files belong to the cells that it would have replaced.
    let own = cell.values.iter().filter(|owned| owned.file.number == cell.number());
    own.for_each(|owned| owned.file.obsolete.store(true, Ordering::Release));
}
