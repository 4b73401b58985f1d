//! Windows of a stream that arrives in buffers.

use super::Windows;
use tessera_accel::Isa;

/// Hashes every window of a stream, however it is divided into buffers.
#[derive(Clone, Debug)]
pub struct Stream {
    windows: Windows,
    isa: Isa,
    /// Received bytes from the start of the next window on.
    carry: Vec<u8>,
    /// Bytes to skip before the next window starts, where steps are longer than windows.
    skip: usize,
}

impl Stream {
    /// A stream that has not begun.
    pub fn new(windows: Windows) -> Stream {
        Stream::new_on(Isa::best(), windows)
    }

    /// [`Stream::new`] by the kernels of `isa`.
    pub fn new_on(isa: Isa, windows: Windows) -> Stream {
        Stream { windows, isa, carry: Vec::new(), skip: 0 }
    }

    /// Takes the next bytes, and appends to `out` the results of all windows that end in them.
    pub fn feed(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let skipped = self.skip.min(data.len());
        self.skip -= skipped;
        let mut data = &data[skipped..];
        if !self.carry.is_empty() {
            // Windows that start in the carried bytes reach at most this far into the new bytes.
            let carried = self.carry.len();
            let reach = data.len().min(self.windows.window_bytes() - 1);
            self.carry.extend_from_slice(&data[..reach]);
            let starts = carried.div_ceil(self.windows.step_bytes());
            let count = self.windows.count(self.carry.len()).min(starts);
            if count > 0 {
                let end = (count - 1) * self.windows.step_bytes() + self.windows.window_bytes();
                self.windows.append(self.isa, &self.carry[..end], out);
            }
            let next = count * self.windows.step_bytes();
            if next < carried {
                // The next window still starts in the carry, so the carry takes all new bytes.
                self.carry.extend_from_slice(&data[reach..]);
                self.carry.drain(..next);
                return;
            }
            self.carry.clear();
            let into = next - carried;
            self.skip = into.saturating_sub(data.len());
            data = &data[into.min(data.len())..];
        }
        self.windows.append(self.isa, data, out);
        let next = self.windows.count(data.len()) * self.windows.step_bytes();
        self.skip += next.saturating_sub(data.len());
        self.carry.extend_from_slice(&data[next.min(data.len())..]);
    }
}
