//! Data that is put on a device once and used there many times, to measure device-resident figures. Programs whose data
//! already lies on a device use their own memory ([`Runtime::submit_in_place`]).
#![allow(unsafe_code)]

use super::central::Central;
use super::{Backend, Buffer, Fault, JobError, Operation, Runtime, Stream, SubmitError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes in the memory of a device. Dropping it frees them; it must be dropped on the thread that made it.
pub struct Resident {
    index: usize,
    backend: Arc<dyn Backend>,
    address: u64,
    bytes: usize,
    central: Arc<Central>,
    // Owns the memory.
    stream: Option<Box<dyn Stream>>,
}

impl Drop for Resident {
    fn drop(&mut self) {
        if !self.central.is_alive(self.index) {
            // The stream's kernels may still read it, and freeing the memory of a stuck stream would block for ever.
            std::mem::forget(self.stream.take());
        }
    }
}

// SAFETY: a shared reference does not reach the stream, which one thread alone may use; the rest is plain data.
unsafe impl Sync for Resident {}

impl Resident {
    /// Address of the bytes in the device's memory, valid while this value lives.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Runtime {
    /// Copies a buffer to the memory of device `index`; `None` if there is no such device.
    pub fn resident(&self, index: usize, buffer: Buffer) -> Option<Result<Resident, Fault>> {
        let backend = self.backends.get(index)?.clone();
        let put = put(backend.as_ref(), &buffer, self.options.stuck_after);
        let bytes = buffer.len();
        if put.as_ref().is_err_and(|fault| !matches!(fault, Fault::NoMemory { .. })) {
            // The device may still read it, so it is never used again and never freed.
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

    /// Runs `operation` `jobs` times on the device's data, several at once, and waits for all of them. The CPU takes
    /// none of them over.
    ///
    /// # Errors
    /// The first failure: the outer one if a job was refused, the inner one if a job failed.
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
            unsafe { self.submit_in_place(operation.clone(), data.index, data.address, None) }
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

/// Copies the bytes to the device's memory, which the stream owns. After a failure the device may still read `bytes`.
fn put(backend: &dyn Backend, bytes: &[u8], patience: Duration) -> Result<(u64, Box<dyn Stream>), Fault> {
    let mut stream = backend.stream()?;
    // Kernels read whole 16-byte blocks.
    let address = stream.reserve(bytes.len().next_multiple_of(16))?;
    match send(stream.as_mut(), address, bytes, backend, patience) {
        Ok(()) => Ok((address, stream)),
        Err(fault) => {
            // Closing a stuck stream would block for ever.
            std::mem::forget(stream);
            Err(fault)
        }
    }
}

/// Sends the bytes, and waits until they have arrived.
fn send(
    stream: &mut dyn Stream,
    address: u64,
    bytes: &[u8],
    backend: &dyn Backend,
    patience: Duration,
) -> Result<(), Fault> {
    let start = Instant::now();
    // SAFETY: the reservation is as long; the caller keeps the bytes until the stream is done, or for ever if it fails.
    unsafe { stream.upload(address, bytes)? };
    while !stream.is_done()? {
        if start.elapsed() > patience {
            return Err(Fault::Stuck { device: backend.name().into(), waited_ms: patience.as_millis() as u64 });
        }
        std::thread::yield_now();
    }
    Ok(())
}
