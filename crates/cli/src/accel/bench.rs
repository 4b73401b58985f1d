//! `tessera accel bench`: every primitive on a device beside the CPU and its roofs, what would go where, and what each part
//! of the runtime brings. Emulated devices can be measured too, to see that it works; their figures mean nothing.

use super::open_with;
use super::roofs::{self, Roofs};
use crate::args::{BenchArgs, OnDevice};
use crate::exit::{Failure, Outcome};
use crate::term::{Align, Out, Table, units};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_accel::boundaries::Params;
use tessera_accel::erasure::{Code, Matrix};
use tessera_accel::runtime::operations::{FindCandidates, HashBatch, Multiply};
use tessera_accel::runtime::{Operation, Options, PoolUse, Request, Target};
use tessera_accel::{Accelerated, Spec};

/// A measurement goes on until it has taken this long.
const ENOUGH: Duration = Duration::from_millis(300);
/// The same where figures mean nothing.
const ENOUGH_FOR_TESTS: Duration = Duration::from_millis(5);
/// Jobs that are submitted before the first is waited for.
const AT_ONCE: usize = 8;

pub fn bench(args: &BenchArgs) -> Outcome {
    let out = Out::new(args.on.talk);
    if matches!(args.on.device, Spec::Emulated(_)) {
        out.note("an emulated device is for tests: these figures say nothing about any GPU");
    }
    if args.ablate { ablate(args, &out) } else { compare(args, &out) }
}

/// One job of each primitive with about `bytes` of input.
fn operations(bytes: usize) -> Outcome<Vec<Arc<dyn Operation>>> {
    let cannot = || Failure::usage(format!("jobs of {bytes} bytes are too large to measure with"));
    let code = Code::new(4, 2, Matrix::Cauchy1).map_err(|e| Failure::usage(e.to_string()))?;
    let params = Params::new(256 << 10, 4 << 20).map_err(|e| Failure::usage(e.to_string()))?;
    let chunks = vec![(bytes / 4).max(1); 4];
    Ok(vec![
        Arc::new(HashBatch::names(&chunks).ok_or_else(cannot)?),
        Arc::new(HashBatch::trees(&chunks).ok_or_else(cannot)?),
        Arc::new(Multiply::encode(&code, bytes / 4, 1)),
        Arc::new(Multiply::reconstruct(&code, &[1, 2, 3, 5], &[0, 4], bytes / 4, 1).ok_or_else(cannot)?),
        Arc::new(FindCandidates::new(&params, 0, bytes).ok_or_else(cannot)?),
    ])
}

/// How long a measurement takes.
pub fn enough(on: &Accelerated) -> Duration {
    let for_tests = on.runtime().devices().iter().any(|d| d.is_for_tests);
    if for_tests { ENOUGH_FOR_TESTS } else { ENOUGH }
}

/// Jobs a second, and jobs done, of one operation.
pub fn measure(on: &Accelerated, operation: &Arc<dyn Operation>, target: Target) -> Outcome<(f64, u64)> {
    let failed = |e: &dyn std::fmt::Display| Failure::new(crate::exit::Exit::Failed, e.to_string());
    let submit = || {
        let input = on.runtime().buffer(operation.input_bytes()).map_err(|e| failed(&e))?;
        let request = Request { target, deadline: None };
        on.runtime().submit(operation.clone(), input, request).map_err(|e| failed(&e))
    };
    submit()?.wait().map_err(|e| failed(&e))?; // Warm: memory and code are there.
    let enough = enough(on);
    let (start, mut jobs, mut waiting) = (Instant::now(), 0u64, std::collections::VecDeque::new());
    while start.elapsed() < enough || jobs < 2 {
        while waiting.len() < AT_ONCE {
            waiting.push_back(submit()?);
        }
        if let Some(job) = waiting.pop_front() {
            job.wait().map_err(|e| failed(&e))?;
            jobs += 1;
        }
    }
    let took = start.elapsed();
    for job in waiting {
        job.wait().map_err(|e| failed(&e))?;
    }
    Ok((jobs as f64 / took.as_secs_f64(), jobs))
}

pub fn gigabytes(rate: f64) -> String {
    format!("{:.2}", rate / 1e9)
}

/// The device beside the CPU, and where a job of this size would go.
fn compare(args: &BenchArgs, out: &Out) -> Outcome {
    let on = open_with(&args.on, Options::default())?;
    let devices = on.runtime().devices();
    if !devices.is_empty() && args.on.device != Spec::Auto {
        on.runtime().calibrate();
    }
    let emulated = matches!(args.on.device, Spec::Emulated(_));
    let roofs = match devices.is_empty() {
        true => None,
        false => Some(Roofs::measured(&on, args.size, emulated)?),
    };
    // Whoever cuts a column out of an emulated device's table takes along what it is.
    let of_device =
        |what: &'static str, said: &'static str| if emulated { (said, Align::Right) } else { (what, Align::Right) };
    let mut table = Table::new([
        ("primitive", Align::Left),
        ("bytes a job", Align::Right),
        ("cpu GB/s", Align::Right),
        of_device("device GB/s", "emulated, no speed"),
        of_device("roof", "emulated roof"),
        of_device("resident GB/s", "emulated resident"),
        of_device("roof", "emulated roof"),
        ("with auto", Align::Left),
    ]);
    for operation in operations(args.size)? {
        let (name, bytes) = (operation.primitive(), operation.input_bytes());
        let cpu = measure(&on, &operation, Target::Cpu)?.0 * bytes as f64;
        let (device, beside) = match &roofs {
            None => (None, roofs::Beside::default()),
            Some(roofs) => {
                let rate = measure(&on, &operation, Target::AnyDevice)?.0 * bytes as f64;
                (Some(rate), roofs.beside(&on, &operation)?)
            }
        };
        let decision = on.runtime().explain(name, bytes).to_string();
        if out.json() {
            let device_name: Vec<String> = devices.iter().map(|d| d.name.to_string()).collect();
            out.document(&json!({
                "primitive": name, "bytes": bytes, "cpu_bytes_per_s": cpu, "device": device_name,
                "device_bytes_per_s": device, "device_roof_bytes_per_s": beside.roof, "resident_bytes_per_s": beside.resident,
                "resident_roof_bytes_per_s": beside.resident_roof, "emulated": emulated, "auto": decision,
            }))?;
        }
        let [device, roof, resident, resident_roof] =
            [device, beside.roof, beside.resident, beside.resident_roof].map(|r| r.map(gigabytes).unwrap_or_default());
        let (bytes, cpu) = (units::count(bytes as u64), gigabytes(cpu));
        table.row([name.into(), bytes, cpu, device, roof, resident, resident_roof, decision]);
    }
    if let Some(roofs) = &roofs {
        roofs.print(out)?;
    }
    if out.json() { Ok(()) } else { table.lines().iter().try_for_each(|line| out.line(line)) }
}

/// A variant of the runtime.
struct Variant {
    name: &'static str,
    options: Options,
    device: Spec,
}

fn variants(on: &OnDevice) -> Vec<Variant> {
    let all = Options::default;
    let one = match on.device {
        Spec::Emulated(_) => Spec::Emulated(1),
        Spec::Cuda(_) => Spec::Cuda(Some(0)),
        other => other,
    };
    let mut variants = vec![
        Variant { name: "everything", options: all(), device: one },
        Variant { name: "no overlap", options: Options { slots: 1, ..all() }, device: one },
        Variant {
            name: "no buffer reuse",
            options: Options { keep_bytes: 0, keep_device_memory: false, ..all() },
            device: one,
        },
        Variant {
            name: "neither",
            options: Options { slots: 1, keep_bytes: 0, keep_device_memory: false, ..all() },
            device: one,
        },
    ];
    let more = match on.device {
        Spec::Emulated(count) => Some(Spec::Emulated(count.max(2))),
        Spec::Cuda(None) => Some(Spec::Cuda(None)),
        _ => None,
    };
    variants.extend(more.map(|device| Variant { name: "more devices", options: all(), device }));
    variants
}

/// What buffer reuse, overlap and more devices bring: hashing, the paper's first measurement, with and without each.
fn ablate(args: &BenchArgs, out: &Out) -> Outcome {
    let mut table = Table::new([
        ("runtime", Align::Left),
        ("devices", Align::Right),
        ("GB/s", Align::Right),
        ("jobs", Align::Right),
        ("buffers made", Align::Right),
        ("reused", Align::Right),
    ]);
    let target = if args.on.device == Spec::Cpu { Target::Cpu } else { Target::AnyDevice };
    for variant in variants(&args.on) {
        let on = open_with(&OnDevice { device: variant.device, ..args.on }, variant.options)?;
        let operation = operations(args.size)?.swap_remove(0);
        let (per_second, jobs) = measure(&on, &operation, target)?;
        let rate = per_second * operation.input_bytes() as f64;
        let (PoolUse { made, reused, .. }, devices) = (on.runtime().buffers(), on.runtime().devices().len());
        if out.json() {
            out.document(&json!({
                "runtime": variant.name, "devices": devices, "bytes_per_s": rate, "jobs": jobs,
                "buffers_made": made, "buffers_reused": reused,
            }))?;
        }
        let cells = [devices as u64, jobs, made, reused].map(units::count);
        let [devices, jobs, made, reused] = cells;
        table.row([variant.name.into(), devices, gigabytes(rate), jobs, made, reused]);
    }
    if out.json() { Ok(()) } else { table.lines().iter().try_for_each(|line| out.line(line)) }
}
