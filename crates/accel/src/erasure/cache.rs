//! A small least-recently-used cache of decoding matrices or schedules: repair needs the same one thousands of times.

use std::sync::{Arc, Mutex, PoisonError};

/// Patterns kept per code. A failed node gives one pattern per fragment number it held.
const CAPACITY: usize = 64;

/// Which k fragments are read, and which are rebuilt from them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    pub sources: Box<[u8]>,
    pub wanted: Box<[u8]>,
}

/// Most recently used last.
#[derive(Debug)]
pub struct Cache<T>(Mutex<Kept<T>>);

type Kept<T> = Vec<(Pattern, Arc<T>)>;

impl<T> Default for Cache<T> {
    fn default() -> Cache<T> {
        Cache(Mutex::default())
    }
}

impl<T> Cache<T> {
    /// The cached value of `pattern`; if absent, `make` computes it outside the lock.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_make<E>(&self, pattern: Pattern, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(found) = self.find(&pattern) {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        let mut kept = self.lock();
        if kept.len() >= CAPACITY {
            kept.remove(0);
        }
        kept.push((pattern, made.clone()));
        assert!(kept.len() <= CAPACITY, "{} patterns kept", kept.len());
        Ok(made)
    }

    fn find(&self, pattern: &Pattern) -> Option<Arc<T>> {
        let mut kept = self.lock();
        let at = kept.iter().rposition(|(p, _)| p == pattern)?;
        let entry = kept.remove(at);
        let found = entry.1.clone();
        kept.push(entry);
        Some(found)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept<T>> {
        // The list is consistent between any two statements, so a panic elsewhere has not damaged it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
