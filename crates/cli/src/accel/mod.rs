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
mod windows;

use crate::args::{AccelCommand, FilesArgs, OnDevice};
use crate::exit::{At, Exit, Failure, Outcome, bail};
use crate::term::Out;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
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
        AccelCommand::Hash(args) => on_device(&args.files.on, |device, out| hash::hash(&args, device, out)),
        AccelCommand::Windows(args) => on_device(&args.files.on, |device, out| windows::windows(&args, device, out)),
        AccelCommand::Boundaries { chunking, files } => {
            on_device(&files.on, |device, out| boundaries::boundaries(chunking, &files.files, device, out))
        }
        AccelCommand::Encode(args) => on_device(&args.files.on, |device, out| fragments::encode(&args, device, out)),
        AccelCommand::Decode { output, force, files } => {
            on_device(&files.on, |device, out| fragments::decode(output.as_deref(), force, &files, device, out))
        }
        AccelCommand::Verify(files) => on_device(&files.on, |device, out| fragments::verify(&files.files, device, out)),
    }
}

/// Runs a command on the device that the user named, and notes where the CPU did the device's work.
fn on_device(on: &OnDevice, command: impl FnOnce(&Accelerated, Out) -> Outcome) -> Outcome {
    let device = open_with(on, Options::default())?;
    let outcome = command(&device, on.output);
    note_faults(on.output, &device);
    outcome
}

fn open_with(on: &OnDevice, options: Options) -> Outcome<Accelerated> {
    let options = Options { samples: tessera_hashgpu::samples, ..options };
    let cpu = Cpu::with(options.isa);
    let (runtime, target) = on.device.runtime(options)?;
    if on.device == tessera_accel::Spec::Auto {
        match calibration_file().filter(|_| !runtime.devices().is_empty()) {
            Some(file) => on.output.note(runtime.calibrate_with_file(&file).to_string()),
            None => drop(runtime.calibrate()),
        }
    }
    Ok(Accelerated::new(runtime, target, cpu))
}

/// Bytes of a file read at a time: no command holds more than a few such pieces in memory.
const PIECE_BYTES: usize = 16 << 20;

/// Opens a file for reading.
fn open_file(path: &Path) -> Outcome<File> {
    File::open(path).at(path)
}

/// Appends up to `most` of the next bytes to `buffer`; returns their number, 0 at the end.
fn read_more(file: &mut File, path: &Path, most: usize, buffer: &mut Vec<u8>) -> Outcome<usize> {
    file.take(most as u64).read_to_end(buffer).at(path)
}

/// Reads until `room` is full or the source ends; returns the number of bytes.
fn fill(source: &mut impl Read, room: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < room.len() {
        match source.read(&mut room[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// Refuses one output for several files.
fn check_output(output: Option<&Path>, args: &FilesArgs) -> Outcome {
    if output.is_some() && args.files.len() > 1 {
        bail!(Exit::Usage, "--output names one path, but there are several files; name them one by one");
    }
    Ok(())
}

/// Refuses an output that exists, unless it may be overwritten.
fn refuse_existing(output: &Path, force: bool) -> Outcome {
    if !force && output.exists() {
        bail!(Exit::Conflict, "{} exists; --force overwrites it, --output names another", output.display());
    }
    Ok(())
}

/// Tells the user where the CPU did the work of a device.
fn note_faults(out: Out, on: &Accelerated) {
    faults(on).iter().for_each(|fault| out.note(fault));
}

/// The faults, in words for the user: the results are right, but the CPU computed them.
fn faults(on: &Accelerated) -> Vec<String> {
    let retired = on.runtime().devices().into_iter().filter_map(|device| device.retired);
    let mut faults: Vec<String> = retired.map(|fault| format!("{fault}; the CPU did the rest")).collect();
    let fallen_back = on.runtime().queues().fallen_back;
    if faults.is_empty() && fallen_back > 0 {
        faults
            .push(format!("{fallen_back} jobs had no room on the device, or in what it gives back; the CPU did them"));
    }
    faults
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
