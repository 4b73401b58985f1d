//! Upper bounds for a device's figures, measured in the same run: transfers alone for data that comes from the host and
//! returns there, copies inside the device for resident data. Multiplications and hashes may limit a device further.

use super::bench::{Work, failed, gigabytes, measure, min_time};
use crate::exit::Outcome;
use crate::term::Out;
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;
use tessera_accel::Accelerated;
use tessera_accel::runtime::operations::{CopyInside, KernelsAlone, Transfer};
use tessera_accel::runtime::{Operation, Resident, Target};

/// Jobs on resident data in flight at once.
const AT_ONCE: usize = 8;
/// Times that a job on resident data runs its kernels: a job alone takes some ten microseconds.
const TIMES: usize = 16;

/// Bytes per second between host and device, and in a device's memory, for the first device; `None` where the device
/// did not do the job.
#[derive(Debug, Clone, Copy)]
pub struct Roofs {
    emulated: bool,
    up: Option<f64>,
    down: Option<f64>,
    /// Each way, with as much traffic the other way.
    both: Option<f64>,
    /// Bytes read plus bytes written.
    memory: Option<f64>,
}

/// The bounds shown with a figure, in bytes of input per second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// Rate of transfers alone of the same bytes.
    pub roof: Option<f64>,
    /// Rate of the kernels on resident data.
    pub resident: Option<f64>,
    /// Rate of copies inside the device of as many bytes as the operation reads and writes.
    pub resident_roof: Option<f64>,
}

impl Roofs {
    /// Measures with jobs of `bytes`.
    ///
    /// # Errors
    /// A job is refused or fails.
    pub fn measured(on: &Accelerated, bytes: usize, emulated: bool) -> Outcome<Roofs> {
        let rate = |up_bytes, down_bytes| -> Outcome<Option<f64>> {
            let transfer: Arc<dyn Operation> = Arc::new(Transfer { up_bytes, down_bytes });
            Ok(measure(on, &Work::of(transfer), Target::AnyDevice)?.map(|done| done.per_second * bytes as f64))
        };
        let (up, down, both) = (rate(bytes, 0)?, rate(0, bytes)?, rate(bytes, bytes)?);
        let memory = on_resident(on, &Work::of(Arc::new(CopyInside::up_to(bytes))), emulated)?;
        Ok(Roofs { emulated, up, down, both, memory: memory.map(|rate| 2.0 * rate) })
    }

    /// The bounds of an operation, and its rate without transfers.
    ///
    /// # Errors
    /// A job is refused or fails.
    pub fn bounds(&self, on: &Accelerated, work: &Work) -> Outcome<Bounds> {
        let read = work.operation.input_bytes() as f64;
        let written = work.operation.output_bytes() as f64;
        let transfer = Work::of(Arc::new(Transfer::of(work.operation.as_ref())));
        Ok(Bounds {
            roof: measure(on, &transfer, Target::AnyDevice)?.map(|done| done.per_second * read),
            resident: on_resident(on, work, self.emulated)?,
            resident_roof: self.memory.map(|memory| memory * read / (read + written).max(1.0)),
        })
    }

    /// Prints the transfers, a line each.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn print(&self, out: Out) -> Outcome {
        let rows = [
            ("to the device", self.up),
            ("from the device", self.down),
            ("each way at once", self.both),
            ("inside the device, read and written", self.memory),
        ];
        for (what, rate) in rows {
            if out.json {
                out.document(&json!({ "transfer": what, "bytes_per_s": rate, "emulated": self.emulated }))?;
            } else if let Some(rate) = rate {
                let of = if self.emulated { " (emulated: no speed of anything)" } else { "" };
                out.line(format!("{what}: {} GB/s{of}", gigabytes(rate)))?;
            }
        }
        Ok(())
    }
}

/// Bytes of input per second of an operation's kernels, with the input on the first device. `None` if that device has
/// failed.
fn on_resident(on: &Accelerated, work: &Work, emulated: bool) -> Outcome<Option<f64>> {
    let has_failed = || on.runtime().devices().first().is_none_or(|device| device.retired.is_some());
    if has_failed() {
        return Ok(None);
    }
    let (times, jobs) = if emulated { (1, 1) } else { (TIMES, AT_ONCE) };
    let Some(put) = on.runtime().resident(0, work.input(on)?) else { return Ok(None) };
    let data: Resident = put.map_err(failed)?;
    let kernels: Arc<dyn Operation> = Arc::new(KernelsAlone::new(work.operation.clone(), times));
    let run = |jobs| match on.runtime().on_resident(&data, &kernels, jobs).map_err(failed)? {
        Err(_) if has_failed() => Ok(false),
        done => done.map(|()| true).map_err(failed),
    };
    // The first run warms up memory and code.
    if !run(1)? {
        return Ok(None);
    }
    let min_time = min_time(on);
    let (start, mut done) = (Instant::now(), 0);
    while done == 0 || start.elapsed() < min_time {
        if !run(jobs)? {
            return Ok(None);
        }
        done += jobs;
    }
    Ok(Some((done * times) as f64 * work.operation.input_bytes() as f64 / start.elapsed().as_secs_f64()))
}
