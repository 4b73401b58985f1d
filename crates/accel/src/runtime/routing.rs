//! Which device finishes a job first: measured costs, and a choice that can explain itself.
//!
//! A cost is a straight line, latency plus bytes over rate, measured with a small and a large job. The CPU's line has
//! almost no latency; a GPU's includes its launches and transfers. Below the crossing of the two lines, jobs stay on
//! the CPU.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What a primitive costs on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Nanoseconds that a job of any size takes.
    pub latency_ns: u64,
    /// Nanoseconds for each MiB of input.
    pub per_mib_ns: u64,
}

impl Cost {
    /// The line through two measurements, (bytes, time); the second has more bytes.
    pub fn through(small: (usize, Duration), large: (usize, Duration)) -> Cost {
        let bytes = large.0.saturating_sub(small.0).max(1) as u128;
        let more_ns = large.1.saturating_sub(small.1).as_nanos().max(1);
        let per_mib_ns = ((more_ns << 20) / bytes).max(1) as u64;
        let slope_ns = (u128::from(per_mib_ns) * small.0 as u128) >> 20;
        Cost { latency_ns: small.1.as_nanos().saturating_sub(slope_ns) as u64, per_mib_ns }
    }

    /// Predicted time of a job with `bytes` of input.
    pub fn of(&self, bytes: usize) -> Duration {
        let work_ns = (u128::from(self.per_mib_ns) * bytes as u128) >> 20;
        Duration::from_nanos(self.latency_ns.saturating_add(u64::try_from(work_ns).unwrap_or(u64::MAX)))
    }

    /// Bytes per second that large jobs approach.
    pub fn rate(&self) -> f64 {
        (1u64 << 20) as f64 * 1e9 / self.per_mib_ns as f64
    }
}

/// Measured costs: (device, primitive) → cost. The CPU is a device named `cpu`.
///
/// The text form has one line per cost: `device primitive latency_ns per_mib_ns`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Calibration {
    costs: BTreeMap<(String, String), Cost>,
}

/// Name of the CPU in a calibration.
pub const CPU: &str = "cpu";

impl Calibration {
    /// What `primitive` costs on `device`, if it was measured.
    pub fn cost(&self, device: &str, primitive: &str) -> Option<Cost> {
        self.costs.get(&(device.to_owned(), primitive.to_owned())).copied()
    }

    /// Sets what `primitive` costs on `device`.
    pub fn set(&mut self, device: &str, primitive: &str, cost: Cost) {
        self.costs.insert((device.to_owned(), primitive.to_owned()), cost);
    }

    /// All costs: (device, primitive, cost).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, Cost)> {
        self.costs.iter().map(|((device, primitive), cost)| (device.as_str(), primitive.as_str(), *cost))
    }

    /// Where a job finishes first: on the CPU, or on one of `devices` (names of those in use).
    pub fn choose(&self, primitive: &str, bytes: usize, devices: &[&str]) -> Decision {
        let predict = |device: &str| self.cost(device, primitive).map(|c| (device.to_owned(), c.of(bytes)));
        let predicted: Vec<_> = std::iter::once(CPU).chain(devices.iter().copied()).filter_map(predict).collect();
        let cpu = predicted.first().filter(|(name, _)| name == CPU).map(|(_, t)| *t);
        let best = predicted.iter().filter(|(name, _)| name != CPU).min_by_key(|(_, t)| *t).cloned();
        let (on_device, why) = match (cpu, best) {
            _ if devices.is_empty() => (false, Why::NoDevice),
            (Some(cpu), Some((_, device))) if device < cpu => (true, Why::Sooner),
            (Some(_), Some(_)) => (false, Why::NotSooner),
            _ => (false, Why::NotMeasured),
        };
        Decision { primitive: primitive.to_owned(), bytes, on_device, why, predicted }
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(d, p, c)| writeln!(f, "{d} {p} {} {}", c.latency_ns, c.per_mib_ns))
    }
}

/// A line that is not a measurement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("calibration line {line}: expected `device primitive latency_ns per_mib_ns`, got {got:?}; delete the file")]
pub struct CalibrationError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Its text.
    pub got: String,
}

impl FromStr for Calibration {
    type Err = CalibrationError;
    fn from_str(text: &str) -> Result<Calibration, CalibrationError> {
        let mut read = Calibration::default();
        for (index, line) in text.lines().enumerate() {
            let wrong = || CalibrationError { line: index + 1, got: line.to_owned() };
            let words: Vec<&str> = line.split_whitespace().collect();
            let [device, primitive, latency, rate] = words[..] else { return Err(wrong()) };
            let latency_ns = latency.parse().map_err(|_| wrong())?;
            let per_mib_ns = rate.parse().ok().filter(|r| *r > 0).ok_or_else(wrong)?;
            read.set(device, primitive, Cost { latency_ns, per_mib_ns });
        }
        Ok(read)
    }
}

/// Why a job runs where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// There is no device but the CPU, or none is in use.
    NoDevice,
    /// The primitive was not measured on both sides.
    NotMeasured,
    /// A device is predicted to finish before the CPU.
    Sooner,
    /// No device is predicted to finish before the CPU: the job is too small for its latency, or the device too slow.
    NotSooner,
}

/// A choice and the predictions behind it. Its `Display` gives the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Primitive.
    pub primitive: String,
    /// Bytes of input.
    pub bytes: usize,
    /// Whether a device does it; otherwise the CPU does.
    pub on_device: bool,
    /// Why.
    pub why: Why,
    /// Predicted time on each device that was measured, the CPU first.
    pub predicted: Vec<(String, Duration)>,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, why) = match self.why {
            Why::NoDevice => ("the CPU", "no device is in use"),
            Why::NotMeasured => ("the CPU", "not every device has been calibrated for this"),
            Why::Sooner => ("a device", "it is done sooner there"),
            Why::NotSooner => ("the CPU", "it is done sooner there"),
        };
        write!(f, "{} of {} bytes goes to {place}: {why}", self.primitive, self.bytes)?;
        let mut before = " (";
        for (device, time) in &self.predicted {
            write!(f, "{before}{device} {:.1} µs", time.as_nanos() as f64 / 1e3)?;
            before = ", ";
        }
        if self.predicted.is_empty() { Ok(()) } else { write!(f, ")") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Calibration {
        let mut c = Calibration::default();
        c.set(CPU, "hash", Cost { latency_ns: 1_000, per_mib_ns: 500_000 });
        c.set("cuda:0", "hash", Cost { latency_ns: 60_000, per_mib_ns: 30_000 });
        c.set("emulated:0", "hash", Cost { latency_ns: 60_000, per_mib_ns: 900_000_000 });
        c
    }

    #[test]
    fn small_jobs_stay_on_the_cpu_and_large_ones_go_where_they_are_done_first() {
        let c = measured();
        let small = c.choose("hash", 64 << 10, &["cuda:0"]);
        assert_eq!((small.on_device, small.why), (false, Why::NotSooner));
        let large = c.choose("hash", 4 << 20, &["emulated:0", "cuda:0"]);
        assert_eq!((large.on_device, large.why), (true, Why::Sooner));
        assert_eq!(c.choose("hash", 4 << 20, &["emulated:0"]).why, Why::NotSooner);
        assert_eq!(c.choose("hash", 4 << 20, &[]).why, Why::NoDevice);
        assert_eq!(c.choose("encode", 4 << 20, &["cuda:0"]).why, Why::NotMeasured);
        assert_eq!(
            small.to_string(),
            "hash of 65536 bytes goes to the CPU: it is done sooner there (cpu 32.2 µs, cuda:0 61.9 µs)"
        );
    }

    #[test]
    fn a_line_goes_through_its_two_points() {
        let cost = Cost::through((1 << 20, Duration::from_nanos(300_000)), (5 << 20, Duration::from_nanos(1_100_000)));
        assert_eq!(cost, Cost { latency_ns: 100_000, per_mib_ns: 200_000 });
        assert_eq!(cost.of(2 << 20), Duration::from_nanos(500_000));
        // Noise can make the larger job the faster one: the result is still a line, and nothing overflows.
        let odd = Cost::through((1 << 20, Duration::from_nanos(9)), (1 << 20, Duration::from_nanos(3)));
        assert!(odd.of(usize::MAX) > Duration::ZERO);
    }

    #[test]
    fn what_is_written_is_read_back_and_what_is_no_line_is_refused() {
        let c = measured();
        assert_eq!(c.to_string().parse(), Ok(c));
        for bad in ["cpu hash 1", "cpu hash 1 0", "cpu hash -1 5", "cpu hash 1 2 3"] {
            assert_eq!(bad.parse::<Calibration>(), Err(CalibrationError { line: 1, got: bad.into() }));
        }
    }
}
