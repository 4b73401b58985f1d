//! Devices by name, as users write them ([`Spec`]), and the device that a whole process computes on ([`use_device`]).

use crate::accelerated::Accelerated;
use crate::device::{Cpu, Device, device, set_device};
use crate::emulated::Emulated;
use crate::runtime::{Backend, NoThread, Options, Runtime, Target, calibration_file};
use parking_lot::Mutex;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Devices by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spec {
    /// `cpu`: no other device.
    Cpu,
    /// `auto`: CUDA devices where measurements show that they finish before the CPU.
    Auto,
    /// `cuda`: every job on any CUDA device; `cuda:N`: on the Nth, from 0.
    Cuda(Option<usize>),
    /// `emulated`: every job on an emulated device; `emulated:N`: on N of them. For tests; slow.
    Emulated(usize),
}

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Not a device's name.
    #[error("no device is called {got:?}; use cpu, auto, cuda, cuda:N, emulated or emulated:N (N of them, up to 64)")]
    Name {
        /// Name given.
        got: String,
    },
    /// There is no CUDA device.
    #[error("no CUDA device: {why}")]
    NoCuda {
        /// The reason.
        why: String,
    },
    /// There are fewer devices.
    #[error("cuda:{index} asked for, this host has {count} CUDA devices, from cuda:0 on")]
    NoSuchDevice {
        /// Number asked for.
        index: usize,
        /// Number of devices.
        count: usize,
    },
    /// The system starts no thread.
    #[error(transparent)]
    NoThread(#[from] NoThread),
    /// The process already computes on another device.
    #[error(
        "device {asked} asked for, but this process computes on {in_use} already; say it before anything else is done"
    )]
    InUse {
        /// Device asked for.
        asked: String,
        /// Device in use.
        in_use: String,
    },
}

impl FromStr for Spec {
    type Err = DeviceError;
    fn from_str(name: &str) -> Result<Spec, DeviceError> {
        let wrong = || DeviceError::Name { got: name.to_owned() };
        let (kind, number) = match name.split_once(':') {
            None => (name, None),
            Some((kind, number)) => (kind, Some(number.parse::<usize>().map_err(|_| wrong())?)),
        };
        match (kind, number) {
            ("cpu", None) => Ok(Spec::Cpu),
            ("auto", None) => Ok(Spec::Auto),
            ("cuda", index) => Ok(Spec::Cuda(index)),
            ("emulated", count @ (None | Some(1..=64))) => Ok(Spec::Emulated(count.unwrap_or(1))),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Cpu => f.write_str("cpu"),
            Spec::Auto => f.write_str("auto"),
            Spec::Cuda(None) => f.write_str("cuda"),
            Spec::Cuda(Some(index)) => write!(f, "cuda:{index}"),
            Spec::Emulated(count) => write!(f, "emulated:{count}"),
        }
    }
}

impl Spec {
    /// A runtime over these devices, and the target for its jobs. `options.memory` becomes pinned where there is CUDA.
    ///
    /// # Errors
    /// A named device does not exist, or the system starts no thread.
    pub fn runtime(self, mut options: Options) -> Result<(Runtime, Target), DeviceError> {
        let (backends, target): (Vec<Arc<dyn Backend>>, Target) = match self {
            Spec::Cpu => (Vec::new(), Target::Cpu),
            Spec::Auto => (cuda(None, &mut options).unwrap_or_default(), Target::Auto),
            Spec::Cuda(index) => (cuda(index, &mut options)?, Target::AnyDevice),
            Spec::Emulated(count) => {
                let emulated = (0..count).map(|i| Arc::new(Emulated::new(i)) as Arc<dyn Backend>);
                (emulated.collect(), Target::AnyDevice)
            }
        };
        Ok((Runtime::new(backends, options)?, target))
    }

    /// Opens these devices behind the [`Device`] interface. For `auto` it calibrates first, or uses a stored
    /// calibration ([`calibration_file`]).
    ///
    /// # Errors
    /// As [`Spec::runtime`].
    pub fn open(self, options: Options) -> Result<Box<dyn Device>, DeviceError> {
        if self == Spec::Cpu {
            return Ok(Box::new(Cpu::with(options.isa)));
        }
        let cpu = Cpu::with(options.isa);
        let (runtime, target) = self.runtime(options)?;
        if self == Spec::Auto && runtime.devices().is_empty() {
            return Ok(Box::new(cpu));
        }
        if self == Spec::Auto {
            match calibration_file() {
                Some(file) => drop(runtime.calibrate_with_file(&file)),
                None => drop(runtime.calibrate()),
            }
        }
        Ok(Box::new(Accelerated::new(runtime, target, cpu)))
    }
}

#[cfg(feature = "cuda")]
fn cuda(index: Option<usize>, options: &mut Options) -> Result<Vec<Arc<dyn Backend>>, DeviceError> {
    let found = crate::cuda::devices().map_err(|why| DeviceError::NoCuda { why: why.to_string() })?;
    let count = found.len();
    if count == 0 {
        return Err(DeviceError::NoCuda { why: "the driver finds none".into() });
    }
    let wanted: Vec<_> = found.into_iter().enumerate().filter(|(i, _)| index.is_none_or(|n| n == *i)).collect();
    let first = wanted.first().ok_or(DeviceError::NoSuchDevice { index: index.unwrap_or(0), count })?;
    options.memory = Arc::new(first.1.pinned());
    Ok(wanted.into_iter().map(|(_, device)| Arc::new(device) as Arc<dyn Backend>).collect())
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: Option<usize>, _: &mut Options) -> Result<Vec<Arc<dyn Backend>>, DeviceError> {
    Err(DeviceError::NoCuda { why: "this build has none; build with the feature `cuda`".into() })
}

/// The argument of the successful [`use_device`] call.
static CHOSEN: Mutex<Option<Spec>> = Mutex::new(None);

/// Makes [`device`] these devices for the whole process. Repeating the call with the same `spec` does nothing.
///
/// # Errors
/// The devices cannot be opened, or the process already uses others: after a call with another `spec`, or after it has
/// computed on the CPU.
pub fn use_device(spec: Spec, options: Options) -> Result<&'static dyn Device, DeviceError> {
    let mut chosen = CHOSEN.lock();
    let in_use = |in_use: String| DeviceError::InUse { asked: spec.to_string(), in_use };
    match *chosen {
        Some(known) if known != spec => return Err(in_use(known.to_string())),
        None if spec != Spec::Cpu && !set_device(spec.open(options)?) => return Err(in_use(device().name().into())),
        _ => *chosen = Some(spec),
    }
    Ok(device())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        for (text, spec) in [
            ("cpu", Spec::Cpu),
            ("auto", Spec::Auto),
            ("cuda", Spec::Cuda(None)),
            ("cuda:3", Spec::Cuda(Some(3))),
            ("emulated:2", Spec::Emulated(2)),
        ] {
            assert_eq!(text.parse(), Ok(spec));
            assert_eq!(spec.to_string(), text);
        }
        assert_eq!("emulated".parse(), Ok(Spec::Emulated(1)));
        for wrong in ["", "gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "emulated:0", "emulated:65", "auto:1"] {
            assert_eq!(wrong.parse::<Spec>(), Err(DeviceError::Name { got: wrong.into() }));
        }
        let nowhere = Spec::Cuda(Some(usize::MAX)).open(Options::default());
        assert!(matches!(nowhere.err(), Some(DeviceError::NoCuda { .. } | DeviceError::NoSuchDevice { .. })));
    }
}
