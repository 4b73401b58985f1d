//! Runs futures in tests: one task after another, until the one that the test waits for is done.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// Rounds after which a test counts as stuck.
const MAX_ROUNDS: usize = 1_000_000;

/// Tasks that run while a test waits.
#[derive(Default)]
pub struct Tasks(Vec<Pin<Box<dyn Future<Output = ()>>>>);

impl Tasks {
    /// Adds a task.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.0.push(Box::pin(task));
    }

    /// Polls `main` and the tasks in turn until `main` is done.
    pub fn run<T>(&mut self, main: impl Future<Output = T>) -> T {
        let mut main = pin!(main);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..MAX_ROUNDS {
            if let Poll::Ready(result) = main.as_mut().poll(&mut context) {
                return result;
            }
            self.0.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        }
        panic!("the test waits for what never happens");
    }
}

/// Lets the other tasks run once.
pub async fn pause() {
    let mut paused = false;
    std::future::poll_fn(|_| match std::mem::replace(&mut paused, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}
