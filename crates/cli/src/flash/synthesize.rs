//! `tessera flash trace synthesize`.

use super::input::{open, wrong};
use crate::args::{LineArgs, SynthesizeArgs};
use crate::exit::{Exit, Failure, Outcome, bail};
use crate::term::units;
use tessera_flash::Op;
use tessera_flash::synthetic::{Generator, Profile, Shares};

/// Each MiB of the device that is drawn from takes memory: 40 bytes of it.
const MAX_FOOTPRINT: u64 = 64 << 40;

/// Writes a synthetic trace to stdout.
pub fn synthesize(args: &SynthesizeArgs) -> Outcome {
    if args.footprint > MAX_FOOTPRINT {
        bail!(Exit::Usage, "--footprint: {} bytes; at most 64T can be drawn from, so name less", args.footprint);
    }
    let profile = args.trace.as_ref().map(|_| measure(args)).transpose()?;
    let mut generator = Generator::new(&args.plan(), profile.as_ref()).map_err(Failure::usage)?;
    let (to, writer) = args.to;
    let mut lines = writer.begin(&label(args, generator.shares()));
    lines.heading().iter().try_for_each(|line| args.output.line(line))?;
    let (mut reads, mut left_out) = (0, 0u64);
    for request in generator.by_ref() {
        reads += u64::from(request.op == Op::Read);
        let written = lines.request(&request);
        left_out += u64::from(written.is_empty());
        written.iter().try_for_each(|line| args.output.line(line))?;
    }
    if left_out > 0 {
        args.output.caution(format!("{} that {to} cannot say are left out", units::plural(left_out, "request")));
    }
    let correlated = units::percent(generator.correlated(), reads);
    let requests = units::plural(args.requests, "request");
    args.output.note(format!("{requests}; {correlated} of the reads belong to correlated groups"));
    args.output.flush()
}

fn measure(args: &SynthesizeArgs) -> Outcome<Profile> {
    let path = args.trace.as_ref().expect("a trace to fit to");
    let lines = LineArgs { format: args.format, skip_bad: args.skip_bad };
    let mut profile = Profile::default();
    for request in open(path, lines, <_>::default())? {
        profile.add(&request.map_err(|e| wrong(path, &e))?);
    }
    Ok(profile)
}

/// Says that the trace is synthetic, and what it has.
fn label(args: &SynthesizeArgs, shares: Shares) -> [String; 2] {
    let source = match &args.trace {
        Some(path) => format!("fitted to {}", path.file_name().unwrap_or(path.as_os_str()).to_string_lossy()),
        None => "of stated shares".into(),
    };
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let skew = args.skew.map_or_else(String::new, |theta| format!(", zipf exponent {theta}"));
    let correlated = match shares.correlated {
        0.0 => "no correlated groups".into(),
        share => format!("{} of reads correlated in {} groups of {} pages", percent(share), args.groups, args.group),
    };
    [
        format!("SYNTHETIC trace of `tessera flash trace synthesize`, {source}"),
        format!(
            "{} requests, seed {}, {} reads, {} sequential{skew}, {correlated}",
            args.requests,
            args.seed,
            percent(shares.reads),
            percent(shares.sequential)
        ),
    ]
}
