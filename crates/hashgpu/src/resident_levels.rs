//! Levels of sorted keys that stay in a device's memory and are searched from the host: for an index that is built once
//! and searched often (CONA's, or that of a flash translation layer). Only queries go to the device, and only answers
//! come back.

use crate::lookup::{KeyPosition, Levels};
use crate::operations::{FindInResident, HostLevels};
use std::sync::Arc;
use tessera_accel::RunError;
use tessera_accel::runtime::{Fault, Job, JobError, NoMemory, Resident, Runtime, Target};

/// Queries of one job. A larger batch becomes several jobs, whose transfers overlap.
const JOB_QUERIES: usize = 1 << 17;

/// Why levels cannot be kept on a device.
#[derive(Debug, thiserror::Error)]
pub enum ResidentError {
    /// There is no such device.
    #[error("device {index} asked for, there are {count}; `tessera accel list` names them")]
    NoSuchDevice {
        /// Index asked for.
        index: usize,
        /// Number of devices.
        count: usize,
    },
    /// More keys than a device's positions can number.
    #[error("{got} keys: 4,294,967,295 are the most in all levels together; keep some of them apart")]
    TooMany {
        /// Keys given.
        got: usize,
    },
    /// The host has no memory for a copy.
    #[error(transparent)]
    Memory(#[from] NoMemory),
    /// The device has no memory for them, or failed.
    #[error(transparent)]
    Device(#[from] Fault),
}

/// Levels in the memory of a device, and a copy on the host. If the device is lost the CPU searches the copy with equal
/// answers (P10). To change the levels, make a new value. Several threads may search at once.
pub struct ResidentLevels {
    host: Arc<HostLevels>,
    resident: Resident,
}

impl ResidentLevels {
    /// Copies the levels, newest first, to the memory of device `index` of `runtime`.
    ///
    /// # Errors
    /// No such device, too many keys, or no memory on the host or on the device; or the device failed.
    pub fn new(runtime: &Runtime, index: usize, levels: &Levels<'_, u64>) -> Result<ResidentLevels, ResidentError> {
        let got = levels.levels().iter().map(|level| level.keys().len()).sum();
        let host = Arc::new(HostLevels::new(levels).ok_or(ResidentError::TooMany { got })?);
        let mut buffer = runtime.buffer(host.bytes())?;
        host.pack(&mut buffer);
        match runtime.resident(index, buffer) {
            None => Err(ResidentError::NoSuchDevice { index, count: runtime.devices().len() }),
            Some(put) => Ok(ResidentLevels { host, resident: put? }),
        }
    }

    /// For each query the newest level that holds it and the position there, as [`Levels::find`] returns it.
    ///
    /// # Errors
    /// [`tessera_accel::runtime::SubmitError::Elsewhere`] if another runtime holds these levels; otherwise the error of
    /// a job.
    pub fn find(&self, runtime: &Runtime, queries: &[u64]) -> Result<Vec<Option<KeyPosition>>, RunError> {
        let index = runtime.device_of(&self.resident)?;
        let (mut jobs, mut refused) = (Vec::new(), None);
        for some in queries.chunks(JOB_QUERIES) {
            match self.submit(runtime, index, some) {
                Ok(job) => jobs.push(job),
                Err(error) => refused = Some(error),
            }
        }
        // Waits for all of them in any case: until they end the device reads the memory of `self`.
        let ended: Vec<_> = jobs.into_iter().map(|(operation, job)| Ok((operation, job.wait()?))).collect();
        if let Some(error) = refused {
            return Err(error);
        }
        let ended = ended.into_iter().collect::<Result<Vec<_>, RunError>>()?;
        let found: Vec<_> = ended.iter().flat_map(|(operation, done)| operation.read(&done.output)).collect();
        assert_eq!(found.len(), queries.len(), "an answer for each query");
        Ok(found)
    }

    fn submit(&self, runtime: &Runtime, index: usize, queries: &[u64]) -> Result<(Arc<FindInResident>, Job), RunError> {
        let operation = Arc::new(FindInResident::new(self.host.clone(), self.resident.address(), queries.len()));
        let mut input = runtime.buffer(8 * queries.len()).map_err(JobError::NoMemory)?;
        input.chunks_exact_mut(8).zip(queries).for_each(|(room, query)| room.copy_from_slice(&query.to_ne_bytes()));
        let job = runtime.submit(operation.clone(), input, Target::Device(index))?;
        Ok((operation, job))
    }
}
