//! Calibrations kept in a file, so that a process that starts does not repeat the measurements of this machine.
//!
//! ```text
//! tessera-accel calibration 3
//! for 0.1.0 avx512 2 threads; cuda:0 NVIDIA H100 80GB HBM3
//! cpu hash 1042 190311
//! cuda:0 hash 23807 31984
//! crc32c 5f0e1a77
//! ```
//! The first line holds the format's name and version, and the build, CPU and devices that the file is valid for. A
//! line for each cost follows ([`Calibration`]), then the CRC-32C of all lines before. A file of another version or
//! machine, or a damaged one, is replaced by a new measurement. It may be deleted at any time.

use super::{Calibration, Runtime};
use crate::checksum::crc32c;
use std::fmt;
use std::path::{Path, PathBuf};

const FORM: &str = "tessera-accel calibration 3";

/// Where costs came from. Its `Display` says why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CalibrationSource {
    /// Read from the file; every device passed the known-answer test, or was retired.
    Stored,
    /// Measured now.
    Measured {
        /// Why the file could not be used.
        why: String,
        /// Why the measurements could not be written; `None` if they were.
        not_stored: Option<String>,
    },
}

impl fmt::Display for CalibrationSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CalibrationSource::Stored => f.write_str("costs were measured before"),
            CalibrationSource::Measured { why, not_stored: None } => {
                write!(f, "costs were measured, and are kept for next time ({why})")
            }
            CalibrationSource::Measured { why, not_stored: Some(not_stored) } => {
                write!(f, "costs were measured: {why}; they could not be kept: {not_stored}")
            }
        }
    }
}

/// This user's file: `$TESSERA_CALIBRATION`, else `tessera/accel-calibration` in `$XDG_CACHE_HOME` or in
/// `$HOME/.cache`. `None` if none of these variables is set: then nothing is kept.
pub fn calibration_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    set("TESSERA_CALIBRATION").or_else(|| Some(cache()?.join("tessera").join("accel-calibration")))
}

impl Runtime {
    /// [`Runtime::calibrate`], unless `file` holds costs of this build, CPU and devices: then it runs only the
    /// known-answer test. It writes measurements to the file and makes the file's folder if necessary.
    pub fn calibrate_with_file(&self, file: &Path) -> CalibrationSource {
        let machine = self.machine();
        match read(file, &machine).and_then(|kept| self.covered(kept)) {
            Ok(kept) => {
                self.test_devices();
                self.set_calibration(kept);
                CalibrationSource::Stored
            }
            Err(why) => {
                let measured = self.calibrate();
                let whole = self.devices().iter().all(|device| device.retired.is_none());
                let kept = if whole { write(file, &machine, &measured) } else { Err("a device was retired".into()) };
                CalibrationSource::Measured { why, not_stored: kept.err() }
            }
        }
    }

    /// The costs, if they cover every primitive that this runtime measures: another program may measure fewer.
    fn covered(&self, kept: Calibration) -> Result<Calibration, String> {
        if self.is_covered_by(&kept) {
            Ok(kept)
        } else {
            Err("the file lacks some of this program's primitives".into())
        }
    }

    /// One line that names the build, the CPU and the devices.
    fn machine(&self) -> String {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut line = format!("{} {} {threads} threads", env!("CARGO_PKG_VERSION"), self.options.isa.name());
        self.devices().iter().for_each(|device| line += &format!("; {} {}", device.name, device.description));
        line.replace(['\n', '\r'], " ")
    }
}

fn read(file: &Path, machine: &str) -> Result<Calibration, String> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!("there was no {shown}"),
        _ => format!("{shown}: {e}"),
    })?;
    let form = text.lines().next().unwrap_or_default();
    if form != FORM {
        return Err(format!("{shown} begins with {form:?}, not with {FORM:?}"));
    }
    let damaged = || format!("{shown} is damaged");
    let (_, sum) = text.trim_end().rsplit_once("\ncrc32c ").ok_or_else(damaged)?;
    let summed = &text[..text.rfind("crc32c ").unwrap_or(0)];
    if u32::from_str_radix(sum, 16) != Ok(crc32c(summed.as_bytes())) {
        return Err(damaged());
    }
    let (of, lines) = summed[FORM.len() + 1..].split_once('\n').ok_or_else(damaged)?;
    let of = of.strip_prefix("for ").ok_or_else(damaged)?;
    if of != machine {
        return Err(format!("{shown} is of {of:?}, this is {machine:?}"));
    }
    lines.parse().map_err(|e| format!("{shown}: {e}"))
}

/// Replaces the file atomically: a reader sees the old one or the new one.
fn write(file: &Path, machine: &str, measured: &Calibration) -> Result<(), String> {
    let mut text = format!("{FORM}\nfor {machine}\n{measured}");
    text += &format!("crc32c {:08x}\n", crc32c(text.as_bytes()));
    let said = |e: std::io::Error| format!("{}: {e}", file.display());
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(said)?;
    }
    let mut new = file.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file)).map_err(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Emulated;
    use crate::runtime::{Backend, Options};
    use std::sync::Arc;

    fn runtime(devices: usize) -> Runtime {
        let backends = (0..devices).map(|i| Arc::new(Emulated::new(i)) as Arc<dyn Backend>).collect();
        Runtime::new(backends, Options { cpu_threads: 1, ..Options::default() }).unwrap()
    }

    /// A calibration is measured once and reused, and measured again when the file does not match in any respect.
    #[test]
    fn what_was_measured_is_used_until_it_is_wrong() {
        let folder = std::env::temp_dir().join(format!("tessera-calibration-{}", std::process::id()));
        let file = folder.join("made").join("accel-calibration");
        let one = runtime(1);
        let first = one.calibrate_with_file(&file);
        assert!(matches!(first, CalibrationSource::Measured { not_stored: None, .. }), "{first}");
        let measured = one.calibration();
        assert!(measured.cost("emulated:0", "hash").is_some());

        let again = runtime(1);
        assert_eq!((again.calibrate_with_file(&file), again.calibration()), (CalibrationSource::Stored, measured));

        let whole = std::fs::read_to_string(&file).unwrap();
        let digit = whole.replacen("cpu hash ", "cpu hash 1", 1);
        for (bad, why) in [
            (whole.replacen("calibration 3", "calibration 2", 1), "begins with"),
            (digit, "damaged"),
            (whole[..whole.len() / 2].to_owned(), "damaged"),
            (String::new(), "begins with"),
        ] {
            assert_ne!(bad, whole);
            std::fs::write(&file, &bad).unwrap();
            let said = again.calibrate_with_file(&file).to_string();
            assert!(said.contains(why) && said.contains("are kept for next time"), "{said}");
            assert_eq!(again.calibrate_with_file(&file), CalibrationSource::Stored);
        }
        let other = runtime(2).calibrate_with_file(&file).to_string();
        assert!(other.contains("this is") && other.contains("emulated:1"), "{other}");
        let nowhere = again.calibrate_with_file(&file.join("below a file")).to_string();
        assert!(nowhere.contains("could not be kept"), "{nowhere}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
