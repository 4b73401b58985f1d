//! The registry of builds with the feature `active`.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::{ALL, VARIABLE};

thread_local! {
    /// Active failpoints of this thread; a name stands here once for each guard.
    static ACTIVE: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// The table's own copy of a name.
fn known(name: &str) -> &'static str {
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no failpoint is called `{name}`; add it to tessera_failpoint::ALL")).0
}

/// The failpoints that [`VARIABLE`] names, active in every thread from the first question on.
fn of_process() -> &'static [&'static str] {
    static NAMED: OnceLock<Vec<&'static str>> = OnceLock::new();
    NAMED.get_or_init(|| {
        let names = std::env::var(VARIABLE).unwrap_or_default();
        names.split(',').filter(|name| !name.is_empty()).map(known).collect()
    })
}

/// Whether a failpoint is active in this thread, or in the process.
///
/// # Panics
/// If [`ALL`] lacks the name, or one that [`VARIABLE`] names.
#[must_use]
pub fn is_active(name: &str) -> bool {
    let name = known(name);
    of_process().contains(&name) || ACTIVE.with_borrow(|active| active.contains(&name))
}

/// Activates a failpoint in this thread until the guard is dropped.
///
/// # Panics
/// If [`ALL`] lacks the name.
#[must_use = "the failpoint is active only while the guard lives"]
pub fn activate(name: &str) -> Guard {
    let name = known(name);
    ACTIVE.with_borrow_mut(|active| active.push(name));
    Guard { name, thread_bound: PhantomData }
}

/// Keeps a failpoint active in the thread that called [`activate`].
#[derive(Debug)]
pub struct Guard {
    name: &'static str,
    /// The registry is the thread's: a guard must be dropped where it was made.
    thread_bound: PhantomData<*const ()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        ACTIVE.with_borrow_mut(|active| {
            let at = active.iter().rposition(|name| *name == self.name);
            active.remove(at.expect("a guard's failpoint is active until the guard is dropped"));
        });
    }
}

/// The failpoints of the thread that called [`inherit`].
#[derive(Clone, Debug)]
pub struct Inherited(Vec<&'static str>);

/// The failpoints that are active in this thread, for a thread that it starts.
#[must_use]
pub fn inherit() -> Inherited {
    Inherited(ACTIVE.with_borrow(Clone::clone))
}

impl Inherited {
    /// Activates the failpoints in the calling thread, until the thread ends.
    pub fn enter(self) {
        ACTIVE.with_borrow_mut(|active| active.extend(self.0));
    }
}
