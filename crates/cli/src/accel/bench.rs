//! `tessera accel bench`: every primitive on a device compared with the CPU and its upper bounds, where each job would
//! go, and the gain of each part of the runtime. Emulated devices can be measured too, as a test; their rates have no
//! meaning.

use super::roofs::{self, Roofs};
use super::{note_faults, open_with};
use crate::args::{BenchArgs, OnDevice};
use crate::exit::{Exit, Failure, Outcome, bail};
use crate::term::{Out, Table, units};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_accel::runtime::{Buffer, Operation, Options, PoolUse, Target, fill_sample};
use tessera_accel::{Accelerated, Spec};
use tessera_hashgpu::samples;

/// Minimum time of a measurement.
const MIN_TIME: Duration = Duration::from_millis(300);
/// Minimum time on devices for tests, whose rates have no meaning.
const MIN_TIME_FOR_TESTS: Duration = Duration::from_millis(5);
/// Most jobs in flight at once.
const AT_ONCE: usize = 8;

pub fn bench(args: &BenchArgs) -> Outcome {
    let out = args.on.output;
    if matches!(args.on.device, Spec::Emulated(_)) {
        out.note("an emulated device is for tests: its rates are meaningless for real GPUs");
    }
    if args.ablate { ablate(args, out) } else { compare(args, out) }
}

/// One job of each primitive that calibration measures, with about `bytes` of input.
fn samples_of(bytes: usize) -> Outcome<Vec<Work>> {
    let all = samples(bytes);
    match all.len() == samples(1 << 20).len() {
        true => Ok(all.into_iter().map(|sample| Work { is_sample: true, ..Work::of(sample) }).collect()),
        false => bail!(Exit::Usage, "jobs of {bytes} bytes are too large to measure with"),
    }
}

/// A measurement: an operation, and the input that it gets repeatedly.
pub struct Work {
    /// The operation.
    pub operation: Arc<dyn Operation>,
    /// Whether the input must be valid; otherwise any bytes will do.
    is_sample: bool,
    /// Whether every job takes a new buffer from the pool, to measure the pool.
    fresh_buffers: bool,
}

impl Work {
    /// An operation whose cost does not depend on the input.
    pub fn of(operation: Arc<dyn Operation>) -> Work {
        Work { operation, is_sample: false, fresh_buffers: false }
    }

    /// Makes an input.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn input(&self, on: &Accelerated) -> Outcome<Buffer> {
        let mut input = on.runtime().buffer(self.operation.input_bytes()).map_err(failed)?;
        match self.is_sample {
            true => fill_sample(self.operation.as_ref(), &mut input),
            false => input.fill(0x5a),
        }
        Ok(input)
    }
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Jobs per second.
    pub per_second: f64,
    /// Jobs done.
    pub jobs: u64,
}

pub fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
}

/// Jobs in flight at once: fewer if they are so large that their buffers would not all be kept for reuse.
fn at_once(operation: &dyn Operation) -> usize {
    let bytes = (operation.input_bytes() + operation.output_bytes()).next_power_of_two();
    (Options::default().keep_bytes / bytes).saturating_sub(1).clamp(2, AT_ONCE)
}

/// Minimum time of a measurement on this device.
pub fn min_time(on: &Accelerated) -> Duration {
    let for_tests = on.runtime().devices().iter().any(|d| d.is_for_tests);
    if for_tests { MIN_TIME_FOR_TESTS } else { MIN_TIME }
}

/// The rate of jobs, several at once. `None` if a device was asked and the CPU did any of them: that rate is not the
/// device's.
///
/// # Errors
/// A job is refused or fails.
pub fn measure(on: &Accelerated, work: &Work, target: Target) -> Outcome<Option<Measured>> {
    let submit = |input: Buffer| on.runtime().submit(work.operation.clone(), input, target).map_err(failed);
    let by_cpu = || on.runtime().done_on_cpu().values().map(|work| work.jobs).sum::<u64>();
    let before = by_cpu();
    submit(work.input(on)?)?.wait().map_err(failed)?; // Warms up memory and code.
    let at_once = at_once(work.operation.as_ref());
    let kept = if work.fresh_buffers { 0 } else { at_once };
    let mut inputs = (0..kept).map(|_| work.input(on)).collect::<Outcome<Vec<Buffer>>>()?;
    let next = |inputs: &mut Vec<Buffer>| match inputs.pop() {
        Some(input) => Ok(input),
        None => on.runtime().buffer(work.operation.input_bytes()).map_err(failed),
    };
    let min_time = min_time(on);
    let (start, mut jobs, mut waiting) = (Instant::now(), 0u64, VecDeque::new());
    while start.elapsed() < min_time || jobs < 2 {
        while waiting.len() < at_once {
            waiting.push_back(submit(next(&mut inputs)?)?);
        }
        if let Some(job) = waiting.pop_front() {
            let done = job.wait().map_err(failed)?;
            inputs.extend(done.input.filter(|_| !work.fresh_buffers));
            jobs += 1;
        }
    }
    // Those that are still running count too: where a job takes long, they are most of the work.
    for job in waiting {
        job.wait().map_err(failed)?;
        jobs += 1;
    }
    let took = start.elapsed();
    let as_asked = target == Target::Cpu || by_cpu() == before;
    Ok(as_asked.then(|| Measured { per_second: jobs as f64 / took.as_secs_f64(), jobs }))
}

pub fn gigabytes(rate: f64) -> String {
    format!("{:.2}", rate / 1e9)
}

/// The device compared with the CPU, and where a job of this size would go.
fn compare(args: &BenchArgs, out: Out) -> Outcome {
    let on = open_with(&args.on, Options::default())?;
    let devices = on.runtime().devices();
    if !devices.is_empty() && args.on.device != Spec::Auto {
        on.runtime().calibrate();
    }
    let emulated = matches!(args.on.device, Spec::Emulated(_));
    let roofs = (!devices.is_empty()).then(|| Roofs::measured(&on, args.size, emulated)).transpose()?;
    // So that a column copied from an emulated device's table says what it is.
    let [device, roof, resident] = match emulated {
        true => ["emulated, no speed", "emulated roof", "emulated resident"],
        false => ["device GB/s", "roof", "resident GB/s"],
    };
    let headings = ["primitive", "bytes a job", "cpu GB/s", device, roof, resident, roof, "with auto"];
    let mut table = Table::new("lrrrrrrl", &headings);
    for work in samples_of(args.size)? {
        let (name, bytes) = (work.operation.primitive(), work.operation.input_bytes());
        let rate = |target| -> Outcome<Option<f64>> {
            Ok(measure(&on, &work, target)?.map(|done| done.per_second * bytes as f64))
        };
        let cpu = rate(Target::Cpu)?;
        let (device, bounds) = match &roofs {
            None => (None, roofs::Bounds::default()),
            Some(roofs) => (rate(Target::AnyDevice)?, roofs.bounds(&on, &work)?),
        };
        let decision = on.runtime().explain(name, bytes).to_string();
        if out.json {
            let device_name: Vec<String> = devices.iter().map(|d| d.name.to_string()).collect();
            out.document(&json!({
                "primitive": name, "bytes": bytes, "cpu_bytes_per_s": cpu, "device": device_name,
                "device_bytes_per_s": device, "device_roof_bytes_per_s": bounds.roof, "resident_bytes_per_s": bounds.resident,
                "resident_roof_bytes_per_s": bounds.resident_roof, "emulated": emulated, "auto": decision,
            }))?;
        }
        let [cpu, device, roof, resident, resident_roof] =
            [cpu, device, bounds.roof, bounds.resident, bounds.resident_roof]
                .map(|r| r.map(gigabytes).unwrap_or_default());
        let bytes = units::count(bytes as u64);
        table.row([name.into(), bytes, cpu, device, roof, resident, resident_roof, decision]);
    }
    if let Some(roofs) = &roofs {
        roofs.print(out)?;
    }
    note_faults(out, &on);
    if out.json { Ok(()) } else { out.table(&table) }
}

/// Variants of the runtime: name, options, device.
fn variants(on: &OnDevice) -> Vec<(&'static str, Options, Spec)> {
    let (one, more) = match on.device {
        Spec::Emulated(count) => (Spec::Emulated(1), Some(Spec::Emulated(count.max(2)))),
        Spec::Cuda(None) => (Spec::Cuda(Some(0)), Some(Spec::Cuda(None))),
        Spec::Cuda(Some(_)) => (Spec::Cuda(Some(0)), None),
        other => (other, None),
    };
    let no_overlap = Options { slots: 1, ..Options::default() };
    let no_reuse = |options| Options { keep_bytes: 0, keep_device_memory: false, ..options };
    let mut variants = vec![
        ("everything", Options::default(), one),
        ("no overlap", no_overlap.clone(), one),
        ("no buffer reuse", no_reuse(Options::default()), one),
        ("neither", no_reuse(no_overlap), one),
    ];
    variants.extend(more.map(|device| ("more devices", Options::default(), device)));
    variants
}

/// The gain of buffer reuse, overlap and more devices: hashing, the paper's first measurement, with and without each.
fn ablate(args: &BenchArgs, out: Out) -> Outcome {
    let mut table = Table::new("lrrrrr", &["runtime", "devices", "GB/s", "jobs", "buffers made", "reused"]);
    let target = if args.on.device == Spec::Cpu { Target::Cpu } else { Target::AnyDevice };
    for (name, options, device) in variants(&args.on) {
        let on = open_with(&OnDevice { device, ..args.on }, options)?;
        let work = Work { fresh_buffers: true, ..samples_of(args.size)?.swap_remove(0) };
        let Some(Measured { per_second, jobs }) = measure(&on, &work, target)? else {
            return Err(failed("the device did not do its jobs; the CPU's speed is not its own"));
        };
        let rate = per_second * work.operation.input_bytes() as f64;
        let (PoolUse { made, reused, .. }, devices) = (on.runtime().buffers(), on.runtime().devices().len());
        if out.json {
            out.document(&json!({
                "runtime": name, "devices": devices, "bytes_per_s": rate, "jobs": jobs,
                "buffers_made": made, "buffers_reused": reused,
            }))?;
        }
        let [devices, jobs, made, reused] = [devices as u64, jobs, made, reused].map(units::count);
        table.row([name.into(), devices, gigabytes(rate), jobs, made, reused]);
    }
    if out.json { Ok(()) } else { out.table(&table) }
}

#[cfg(test)]
mod tests {
    use super::super::faults;
    use super::*;
    use tessera_accel::Cpu;
    use tessera_accel::runtime::operations::Transfer;
    use tessera_accel::runtime::{Backend, Fault, Runtime, Stream};

    /// A device that cannot be opened.
    #[derive(Debug)]
    struct Broken;

    impl Backend for Broken {
        fn name(&self) -> &str {
            "broken:0"
        }

        fn description(&self) -> String {
            "for this test".into()
        }

        fn memory_bytes(&self) -> u64 {
            1 << 20
        }

        fn calibration_bytes(&self) -> usize {
            1 << 10
        }

        fn stream(&self) -> Result<Box<dyn Stream>, Fault> {
            Err(Fault::Failed { device: "broken:0".into(), what: "open".into(), why: "as planned".into() })
        }
    }

    /// A figure of work that the CPU did for a device is not reported as the device's, and the output says so.
    #[test]
    fn the_speed_of_the_cpu_is_not_reported_as_a_devices() {
        let runtime = Runtime::new(vec![Arc::new(Broken)], Options { cpu_threads: 1, ..Options::default() }).unwrap();
        let on = Accelerated::new(runtime, Target::AnyDevice, Cpu::new());
        let transfer = Work::of(Arc::new(Transfer { up_bytes: 64, down_bytes: 64 }));
        assert!(measure(&on, &transfer, Target::AnyDevice).unwrap().is_none());
        assert!(measure(&on, &transfer, Target::Cpu).unwrap().is_some());
        let faults = faults(&on).concat();
        assert!(faults.contains("broken:0: open: as planned") && faults.contains("the CPU"), "{faults}");
        let roofs = Roofs::measured(&on, 64, false).unwrap();
        assert!(roofs.bounds(&on, &transfer).unwrap().resident.is_none());
    }
}
