//! `tessera accel`: the primitives on any file and any device, without a store. Every device prints the same results
//! (P10); only the output of `list` and `bench` depends on the device. Files are read piece by piece, and may be larger
//! than memory.

mod bench;
mod boundaries;
mod digests;
mod fragments;
mod hash;
mod list;
mod page;
mod roofs;
mod streams;
mod windows;

use crate::args::{AccelCommand, OnDevice};
use crate::exit::{Exit, Failure, Outcome};
use crate::term::Out;
use tessera_accel::runtime::{Options, calibration_file};
use tessera_accel::{Accelerated, Cpu, DeviceError, RunError};

/// Runs a command.
///
/// # Errors
/// The failure of the command.
pub fn run(command: AccelCommand) -> Outcome {
    match command {
        AccelCommand::List { output } => list::list(output),
        AccelCommand::Bench(args) => bench::bench(&args),
        AccelCommand::Hash(args) => hash::hash(&args),
        AccelCommand::Windows(args) => windows::windows(&args),
        AccelCommand::Boundaries { chunking, files } => boundaries::boundaries(chunking, &files),
        AccelCommand::Encode(args) => fragments::encode(&args),
        AccelCommand::Decode { output, force, files } => fragments::decode(output.as_deref(), force, &files),
        AccelCommand::Verify(args) => fragments::verify(&args),
    }
}

/// The devices that the user named.
fn open(on: &OnDevice) -> Outcome<Accelerated> {
    open_with(on, Options::default())
}

fn open_with(on: &OnDevice, options: Options) -> Outcome<Accelerated> {
    let options = Options { samples: tessera_hashgpu::samples, ..options };
    let cpu = Cpu::with(options.isa);
    let (runtime, target) = on.device.runtime(options)?;
    if on.device == tessera_accel::Spec::Auto {
        match calibration_file().filter(|_| !runtime.devices().is_empty()) {
            Some(file) => on.output.note(runtime.calibrate_kept(&file).to_string()),
            None => drop(runtime.calibrate()),
        }
    }
    Ok(Accelerated::new(runtime, target, cpu))
}

/// Tells the user where the CPU did the work of a device.
fn say_faults(out: Out, on: &Accelerated) {
    faults(on).iter().for_each(|fault| out.note(fault));
}

/// The faults, in words for the user: the results are right, but the CPU computed them.
fn faults(on: &Accelerated) -> Vec<String> {
    let retired = on.runtime().devices().into_iter().filter_map(|device| device.retired);
    let mut said: Vec<String> = retired.map(|fault| format!("{fault}; the CPU did the rest")).collect();
    let handed = on.runtime().queues().fallen_back;
    if said.is_empty() && handed > 0 {
        said.push(format!("{handed} jobs had no room on the device, or in what it gives back; the CPU did them"));
    }
    said
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        let exit = match error {
            DeviceError::Name { .. } | DeviceError::InUse { .. } => Exit::Usage,
            DeviceError::NoCuda { .. } | DeviceError::NoSuchDevice { .. } => Exit::NotFound,
            DeviceError::NoThread(_) => Exit::Failed,
        };
        Failure::new(exit, error.to_string())
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        Failure::new(Exit::Failed, error.to_string())
    }
}
