//! Data that is put on a device once and computed on there many times: what device-resident figures are measured with.
//! Users whose data lies on a device anyway have it in memory of their own ([`Runtime::submit_in_place`]).
#![allow(unsafe_code)]

use super::{Backend, Buffer, Fault, JobError, Operation, Runtime, Stream, SubmitError};
use std::sync::Arc;

/// Bytes in the memory of a device. Given back when dropped; on the thread that made it.
pub struct Resident {
    index: usize,
    address: u64,
    bytes: usize,
    // Holds the memory.
    _stream: Box<dyn Stream>,
}

impl Runtime {
    /// Copies a buffer to the memory of device `index`; none if there is no such device.
    pub fn resident(&self, index: usize, buffer: Buffer) -> Option<Result<Resident, Fault>> {
        let put = put(self.backends.get(index)?.as_ref(), &buffer);
        let bytes = buffer.len();
        if put.is_err() {
            // The device may still be reading it: never used again, never freed.
            std::mem::forget(buffer);
        }
        Some(put.map(|(address, stream)| Resident { index, address, bytes, _stream: stream }))
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
fn put(backend: &dyn Backend, bytes: &[u8]) -> Result<(u64, Box<dyn Stream>), Fault> {
    let mut stream = backend.stream()?;
    // Kernels read whole pieces of 16 bytes.
    let address = stream.reserve(bytes.len().next_multiple_of(16))?;
    match send(stream.as_mut(), address, bytes) {
        Ok(()) => Ok((address, stream)),
        Err(fault) => {
            // One that is stuck would make whoever closes it wait for ever.
            std::mem::forget(stream);
            Err(fault)
        }
    }
}

fn send(stream: &mut dyn Stream, address: u64, bytes: &[u8]) -> Result<(), Fault> {
    // SAFETY: the reservation is as long; the caller keeps the bytes until the stream is done, or for ever if it fails.
    unsafe { stream.upload(address, bytes)? };
    while !stream.is_done()? {
        std::thread::yield_now();
    }
    Ok(())
}
