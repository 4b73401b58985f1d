//! Searches of many logical pages at once in levels of sorted keys, by the accelerator's look-up primitive.

use std::fmt;
use std::sync::Arc;
use tessera_hashgpu::lookup::{KeyPosition, Levels, Sorted};

/// The keys of a level, which rise strictly.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Logical pages.
    pub keys: &'a [u32],
    /// Another number, other keys.
    pub version: u64,
}

/// What searches levels: the CPU, or a device that keeps them in its memory.
pub trait Search: Send {
    /// For each query, its place in the first of the levels that has it. All calls are about the same map.
    fn find(&mut self, levels: &[View<'_>], queries: &[u32]) -> Vec<Option<KeyPosition>>;

    /// Figures of its own, by name.
    fn figures(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Makes a [`Search`] for each map.
#[derive(Clone)]
pub struct Searches(Arc<dyn Fn() -> Box<dyn Search> + Send + Sync>);

impl Searches {
    /// Searches that the function makes.
    pub fn new(make: impl Fn() -> Box<dyn Search> + Send + Sync + 'static) -> Self {
        Searches(Arc::new(make))
    }

    /// One for another map.
    pub fn make(&self) -> Box<dyn Search> {
        (self.0)()
    }
}

impl Default for Searches {
    fn default() -> Self {
        Searches::new(|| Box::new(OnCpu))
    }
}

impl fmt::Debug for Searches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Searches")
    }
}

/// Searches on the CPU, sixteen queries side by side.
#[derive(Debug, Clone, Copy)]
pub struct OnCpu;

impl Search for OnCpu {
    fn find(&mut self, levels: &[View<'_>], queries: &[u32]) -> Vec<Option<KeyPosition>> {
        let levels = levels.iter().map(|level| Sorted::trusted(level.keys)).collect();
        Levels::new(levels).expect("fewer levels than bits in a page number").find(queries)
    }
}
