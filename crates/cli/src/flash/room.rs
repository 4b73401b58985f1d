//! How much the replies of a connection may take while they wait.

use parking_lot::{Condvar, Mutex};

/// The most replies of a connection that wait for their time.
const REPLIES_MAX: usize = 1024;

/// The most bytes that they have; one alone may have more.
const BYTES_MAX: usize = 64 << 20;

#[derive(Default)]
struct Taken {
    replies: usize,
    bytes: usize,
    is_closed: bool,
}

/// Room for replies.
#[derive(Default)]
pub struct Room {
    taken: Mutex<Taken>,
    freed: Condvar,
}

impl Room {
    /// Waits until there is room for a reply, and takes it; `false`: nothing is sent any more.
    pub fn take(&self, bytes: usize) -> bool {
        let mut taken = self.taken.lock();
        while !taken.is_closed && taken.replies > 0 && (taken.replies >= REPLIES_MAX || taken.bytes + bytes > BYTES_MAX)
        {
            self.freed.wait(&mut taken);
        }
        (taken.replies, taken.bytes) = (taken.replies + 1, taken.bytes + bytes);
        !taken.is_closed
    }

    /// Gives the room of a reply back.
    pub fn free(&self, bytes: usize) {
        let mut taken = self.taken.lock();
        (taken.replies, taken.bytes) = (taken.replies - 1, taken.bytes - bytes);
        self.freed.notify_one();
    }

    /// Whether one reply has room, and no other.
    pub fn is_one(&self) -> bool {
        self.taken.lock().replies == 1
    }

    /// Ends all waiting: nothing is sent any more.
    pub fn close(&self) {
        self.taken.lock().is_closed = true;
        self.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_wait_for_room_by_bytes_and_by_number_and_a_large_one_goes_alone() {
        let room = Room::default();
        assert!(room.take(BYTES_MAX + 1), "alone");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| room.take(1));
            room.free(BYTES_MAX + 1);
            assert!(next.join().unwrap());
            (1..REPLIES_MAX).for_each(|_| assert!(room.take(0)));
            let last = scope.spawn(|| room.take(0));
            room.free(0);
            assert!(last.join().unwrap());
            let refused = scope.spawn(|| room.take(0));
            room.close();
            assert!(!refused.join().unwrap());
        });
        let taken = room.taken.lock();
        assert_eq!((taken.replies, taken.bytes), (REPLIES_MAX + 1, 1));
    }
}
