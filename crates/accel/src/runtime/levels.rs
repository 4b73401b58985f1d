//! Levels of sorted keys that stay in a device's memory, asked from the host: what an index that is made once and asked often
//! wants (CONA's, a flash translation's). Only queries go to the device, and only answers come back.

use super::operations::{FindInKept, HostLevels};
use super::{Fault, NoMemory, Request, Resident, Runtime, SubmitError, Target};
use crate::RunError;
use crate::lookup::{Found, Levels};
use std::sync::Arc;

/// Queries of one job: more become several, whose transfers overlap.
const JOB_QUERIES: usize = 1 << 17;

/// Why levels are not kept on a device.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// There is no such device.
    #[error("device {index} asked for, there are {count}; `tessera accel list` names them")]
    NoSuchDevice {
        /// Index asked for.
        index: usize,
        /// Devices there are.
        count: usize,
    },
    /// More keys than devices count.
    #[error("{got} keys: 4,294,967,295 are the most in all levels together; keep some of them apart")]
    TooMany {
        /// Keys given.
        got: usize,
    },
    /// The host has no memory for a copy.
    #[error(transparent)]
    Memory(#[from] NoMemory),
    /// The device has none, or failed.
    #[error(transparent)]
    Device(#[from] Fault),
}

/// Levels in the memory of a device, and in the host's: the CPU answers with equal bytes if the device is lost (P10). What
/// changes is kept anew. Several threads may ask at once.
pub struct ResidentLevels {
    host: Arc<HostLevels>,
    resident: Resident,
}

impl Runtime {
    /// Copies the levels, newest first, to the memory of device `index`.
    pub fn keep_levels(&self, index: usize, levels: &Levels<'_, u64>) -> Result<ResidentLevels, KeepError> {
        let got = levels.levels().iter().map(|level| level.keys().len()).sum();
        let host = Arc::new(HostLevels::new(levels).ok_or(KeepError::TooMany { got })?);
        let mut buffer = self.buffer(host.bytes())?;
        host.pack(&mut buffer);
        match self.resident(index, buffer) {
            None => Err(KeepError::NoSuchDevice { index, count: self.backends.len() }),
            Some(put) => Ok(ResidentLevels { host, resident: put? }),
        }
    }

    /// For each query where the newest level that has it keeps it, as [`Levels::find`] says it.
    ///
    /// # Errors
    /// [`SubmitError::Elsewhere`] if another runtime keeps these levels; else what its jobs ended with.
    pub fn find_in_kept(&self, kept: &ResidentLevels, queries: &[u64]) -> Result<Vec<Option<Found>>, RunError> {
        let index = self.place_of(&kept.resident)?;
        let (mut jobs, mut refused) = (Vec::new(), None);
        for some in queries.chunks(JOB_QUERIES) {
            match self.ask(kept, index, some) {
                Ok(job) => jobs.push(job),
                Err(error) => refused = Some(error),
            }
        }
        // All of them, whatever happens: until then the device reads what `kept` holds.
        let ended: Vec<_> = jobs.into_iter().map(|(operation, job)| Ok((operation, job.wait()?))).collect();
        match refused {
            Some(error) => Err(error),
            None => {
                let ended = ended.into_iter().collect::<Result<Vec<_>, RunError>>()?;
                Ok(ended.iter().flat_map(|(operation, done)| operation.read(&done.output)).collect())
            }
        }
    }

    fn ask(
        &self,
        kept: &ResidentLevels,
        index: usize,
        queries: &[u64],
    ) -> Result<(Arc<FindInKept>, super::Job), RunError> {
        let operation = Arc::new(FindInKept::new(kept.host.clone(), kept.resident.address(), queries.len()));
        let mut input = self.buffer(8 * queries.len()).map_err(super::JobError::NoMemory)?;
        input.chunks_exact_mut(8).zip(queries).for_each(|(room, query)| room.copy_from_slice(&query.to_ne_bytes()));
        let request = Request { target: Target::Device(index), deadline: None };
        let job = self.submit(operation.clone(), input, request)?;
        Ok((operation, job))
    }

    /// The device that holds the data, if it is one of this runtime's.
    pub(super) fn place_of(&self, data: &Resident) -> Result<usize, SubmitError> {
        let here = self.backends.get(data.index()).is_some_and(|backend| data.is_on(backend));
        if here { Ok(data.index()) } else { Err(SubmitError::Elsewhere) }
    }
}
