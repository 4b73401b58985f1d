//! A small cache of decoding matrices or schedules: repair needs the same one thousands of times.

use parking_lot::Mutex;
use quick_cache::unsync;
use std::sync::Arc;

/// Patterns kept per code. A failed node gives one pattern per fragment number it held.
const CAPACITY: usize = 64;

/// Which k fragments are read, and which are rebuilt from them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pattern {
    pub sources: Box<[u8]>,
    pub wanted: Box<[u8]>,
}

/// Values by pattern.
#[derive(Debug)]
pub struct Cache<T>(Mutex<unsync::Cache<Pattern, Arc<T>>>);

impl<T> Default for Cache<T> {
    fn default() -> Cache<T> {
        Cache(Mutex::new(unsync::Cache::new(CAPACITY)))
    }
}

impl<T> Cache<T> {
    /// The cached value of `pattern`; if absent, `make` computes it outside the lock.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_make<E>(&self, pattern: Pattern, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(cached) = self.0.lock().get(&pattern) {
            return Ok(cached.clone());
        }
        let made = Arc::new(make()?);
        self.0.lock().insert(pattern, made.clone());
        Ok(made)
    }
}
