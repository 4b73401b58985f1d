//! Whether simulated SSDs fit into the machine's memory, and how many replays at a time.

use super::replay::Run;
use crate::args::ReplayArgs;
use crate::exit::{Exit, Failure, Outcome, bail};
use crate::term::units;
use tessera_flash::{Config, ConfigError};

/// Bytes that a page of the host's cache takes: an entry in a hash table, and one in a list.
const HOST_CACHE_PAGE_BYTES: u64 = 40;

/// How many replays run at a time: at most `most`, and fewer if those with the largest devices do not fit.
///
/// # Errors
/// A device cannot be made, or a replay alone does not fit.
pub fn at_once(args: &ReplayArgs, runs: &[Run<'_>], most: usize) -> Outcome<usize> {
    let needs = runs.iter().map(|run| need(args, run)).collect::<Outcome<Vec<u64>>>()?;
    let Some(available) = available() else { return Ok(most) };
    let (largest, run) = needs.iter().zip(runs).max_by_key(|(need, _)| **need).expect("there is a replay");
    let threads = fitting(&needs, most, available);
    if threads == 0 {
        let compact = if args.compact { "" } else { "--compact, " };
        let cache = match largest / 2 {
            half if host_cache_bytes(args) > half => "a smaller --host-cache, ",
            half if run.config.cache_bytes() > half => "a smaller --map-cache, ",
            _ => "",
        };
        bail!(
            Exit::Usage,
            "{}: {} with a capacity of {} needs {} of memory, and {} is available; use {cache}{compact}a smaller --capacity with --wrap, larger pages (--geometry page=64K), or leave that layer out of --ftl",
            run.input.path.display(),
            run.layer.name,
            units::bytes(run.config.capacity),
            units::bytes(*largest),
            units::bytes(available)
        );
    }
    if threads < most {
        let (all, available) = (units::bytes(needs.iter().sum()), units::bytes(available));
        args.output.note(format!(
            "{} at a time and not {most}: all together need {all} of memory, and {available} is available",
            units::plural(threads as u64, "replay")
        ));
    }
    Ok(threads)
}

/// Checks that there is memory for an SSD, beside what it holds.
///
/// # Errors
/// The SSD cannot be made, or does not fit.
pub fn check(config: &Config) -> Outcome {
    let need = config.memory_bytes().and_then(|bytes| Ok(bytes + config.recovery_bytes()?)).map_err(Failure::usage)?;
    let Some(available) = available().filter(|available| *available < need) else { return Ok(()) };
    let cache = if config.cache_bytes() > need / 2 { "--map-cache or " } else { "" };
    bail!(
        Exit::Usage,
        "{} with a capacity of {} needs {} of memory, and {} is available; lower {cache}--capacity, or use larger pages (--geometry page=64K)",
        config.ftl,
        units::bytes(config.capacity),
        units::bytes(need),
        units::bytes(available)
    );
}

/// Bytes of memory that a replay takes.
fn need(args: &ReplayArgs, run: &Run<'_>) -> Outcome<u64> {
    let device = run.config.memory_bytes().map_err(|e| match e {
        ConfigError::TooLarge { .. } if !args.compact => {
            Failure::usage(format!("{e}, or leave out with --compact what no request touches"))
        }
        e => Failure::usage(e),
    })?;
    let recovery = if args.cut_every.is_some() { run.config.recovery_bytes().map_err(Failure::usage)? } else { 0 };
    Ok(device + recovery + host_cache_bytes(args))
}

fn host_cache_bytes(args: &ReplayArgs) -> u64 {
    args.host_cache / u64::from(args.geometry.page_bytes) * HOST_CACHE_PAGE_BYTES
}

/// How many of the largest fit at a time.
fn fitting(needs: &[u64], most: usize, available: u64) -> usize {
    let mut largest_first = needs.to_vec();
    largest_first.sort_unstable_by_key(|need| std::cmp::Reverse(*need));
    let mut sum = 0u64;
    let fits = |need: &&u64| {
        sum = sum.saturating_add(**need);
        sum <= available
    };
    largest_first.iter().take(most).take_while(fits).count()
}

/// Bytes that programs can still get, as Linux estimates.
fn available() -> Option<u64> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_replays_run_as_fit_whichever_they_are() {
        let needs = [10, 40, 20, 30];
        let at_once = [100, 99, 90, 70, 69, 40, 39].map(|available| fitting(&needs, 4, available));
        assert_eq!(at_once, [4, 3, 3, 2, 1, 1, 0]);
        assert_eq!(fitting(&needs, 2, 1000), 2);
        assert_eq!(fitting(&[u64::MAX, u64::MAX], 2, u64::MAX), 2, "the sum saturates");
    }

    #[test]
    fn the_estimate_of_linux_is_read() {
        let text = "MemTotal:       24599996 kB\nMemFree:         1 kB\nMemAvailable:   23599996 kB\n";
        assert_eq!((available_in(text), available_in("MemTotal: 1 kB\n")), (Some(23_599_996 << 10), None));
    }
}
