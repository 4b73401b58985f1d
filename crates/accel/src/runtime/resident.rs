//! Data that is put on a device once and computed on there many times: what device-resident figures are measured with.
//! Users whose data lies on a device anyway have it in memory of their own ([`Runtime::submit_in_place`]).
#![allow(unsafe_code)]

use super::central::Central;
use super::{Backend, Buffer, Fault, JobError, Operation, Runtime, Stream, SubmitError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes in the memory of a device. Given back when dropped; on the thread that made it.
pub struct Resident {
    index: usize,
    backend: Arc<dyn Backend>,
    address: u64,
    bytes: usize,
    central: Arc<Central>,
    // Holds the memory.
    stream: Option<Box<dyn Stream>>,
}

impl Drop for Resident {
    fn drop(&mut self) {
        if !self.central.is_alive(self.index) {
            // Its kernels may still be reading; and one that is stuck would make whoever frees its memory wait for ever.
            std::mem::forget(self.stream.take());
        }
    }
}

// SAFETY: the stream, which is for one thread, cannot be reached by a shared reference; the rest is plain data.
unsafe impl Sync for Resident {}

impl Resident {
    /// Where the bytes lie in the device's memory, as long as this value lives.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Runtime {
    /// Copies a buffer to the memory of device `index`; none if there is no such device.
    pub fn resident(&self, index: usize, buffer: Buffer) -> Option<Result<Resident, Fault>> {
        let backend = self.backends.get(index)?.clone();
        let put = put(backend.as_ref(), &buffer, self.options.stuck_after);
        let bytes = buffer.len();
        if put.as_ref().is_err_and(|fault| !matches!(fault, Fault::NoMemory { .. })) {
            // The device may still be reading it: never used again, never freed.
            std::mem::forget(buffer);
        }
        let central = self.central.clone();
        Some(put.map(|(address, stream)| Resident { index, backend, address, bytes, central, stream: Some(stream) }))
    }

    /// Index of the device that holds the data.
    ///
    /// # Errors
    /// [`SubmitError::Elsewhere`] if that is a device of another runtime.
    pub fn device_of(&self, data: &Resident) -> Result<usize, SubmitError> {
        let here = self.backends.get(data.index).is_some_and(|backend| Arc::ptr_eq(&data.backend, backend));
        if here { Ok(data.index) } else { Err(SubmitError::Elsewhere) }
    }

    /// Runs `operation` `jobs` times on what lies on the device, several at once, and waits for all of them. The first
    /// failure is what is returned; the CPU takes none of them over.
    pub fn on_resident(
        &self,
        data: &Resident,
        operation: &Arc<dyn Operation>,
        jobs: usize,
    ) -> Result<Result<(), JobError>, SubmitError> {
        let (primitive, expected) = (operation.primitive(), operation.input_bytes());
        self.device_of(data)?;
        if expected > data.bytes {
            return Err(SubmitError::InputLength { primitive, expected, got: data.bytes });
        }
        let submit = |_| {
            // SAFETY: `data` has the bytes, rounded up, and is borrowed until every job below has been waited for.
            unsafe { self.submit_in_place(operation.clone(), data.index, data.address, None, None) }
        };
        let (mut waiting, mut refused) = (Vec::new(), None);
        for job in (0..jobs).map(submit) {
            match job {
                Ok(job) => waiting.push(job),
                Err(error) => refused = Some(error),
            }
        }
        let ended: Vec<_> = waiting.into_iter().map(|job| job.wait().map(drop)).collect();
        refused.map_or_else(|| Ok(ended.into_iter().collect()), Err)
    }
}

/// Copies the bytes to memory of the device's, which the stream holds. After a failure they may still be read.
fn put(backend: &dyn Backend, bytes: &[u8], patience: Duration) -> Result<(u64, Box<dyn Stream>), Fault> {
    let mut stream = backend.stream()?;
    // Kernels read whole pieces of 16 bytes.
    let address = stream.reserve(bytes.len().next_multiple_of(16))?;
    match send(stream.as_mut(), address, bytes, patience) {
        Ok(true) => Ok((address, stream)),
        Ok(false) => {
            std::mem::forget(stream);
            Err(Fault::Stuck { device: backend.name().into(), waited_ms: patience.as_millis() as u64 })
        }
        Err(fault) => {
            // One that is stuck would make whoever closes it wait for ever.
            std::mem::forget(stream);
            Err(fault)
        }
    }
}

/// Whether the bytes are there, after so long at most.
fn send(stream: &mut dyn Stream, address: u64, bytes: &[u8], patience: Duration) -> Result<bool, Fault> {
    let start = Instant::now();
    // SAFETY: the reservation is as long; the caller keeps the bytes until the stream is done, or for ever if it fails.
    unsafe { stream.upload(address, bytes)? };
    while !stream.is_done()? {
        if start.elapsed() > patience {
            return Ok(false);
        }
        std::thread::yield_now();
    }
    Ok(true)
}
