//! Runs an operation of the mount core on the calling thread.
//!
//! Calls of the client library block inside the future, so a future is pending only while it waits for a lock, for
//! another operation or for a time.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

thread_local! {
    /// When a future of this thread wants to be polled again at the latest.
    static WAKE_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls `future` until it is done; parks the thread while it is pending.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            WAKE_AT.set(None);
            return done;
        }
        match WAKE_AT.take() {
            Some(at) => std::thread::park_timeout(at.saturating_duration_since(Instant::now())),
            None => std::thread::park(),
        }
    }
}

/// Is done after `duration`; for futures that [`block_on`] runs.
pub async fn sleep(duration: Duration) {
    let at = Instant::now() + duration;
    poll_fn(|_| {
        if Instant::now() >= at {
            return Poll::Ready(());
        }
        WAKE_AT.set(Some(WAKE_AT.get().map_or(at, |before| before.min(at))));
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_waits_for_wakers_and_for_times() {
        let (sender, mut receiver) = tokio::sync::oneshot::channel();
        let (tell, told) = mpsc::channel();
        let waiting = std::thread::spawn(move || {
            block_on(async {
                sleep(Duration::from_millis(20)).await;
                assert!(receiver.try_recv().is_err(), "the time came first");
                tell.send(()).unwrap();
                receiver.await
            })
        });
        told.recv().unwrap();
        sender.send(7).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(7));
    }
}
