//! Each target in an ordinary test run, and for a minute by `make fuzz`.

use std::path::Path;
use tessera_failpoint as failpoint;
use tessera_fuzz::{Target, driver, targets};

fn fuzz(target: &Target) {
    let report = driver::fuzz(target, Path::new(env!("CARGO_TARGET_TMPDIR")));
    println!("{}: {report:?}", target.name);
}

#[test]
fn frames() {
    fuzz(&targets::frames::TARGET);
}

#[test]
fn requests() {
    fuzz(&targets::requests::TARGET);
}

#[test]
fn segments() {
    fuzz(&targets::segments::TARGET);
}

#[test]
fn extents() {
    fuzz(&targets::extents::TARGET);
}

#[test]
fn consensus_log() {
    fuzz(&targets::consensus_log::TARGET);
}

#[test]
fn peer() {
    fuzz(&targets::peer::TARGET);
}

#[test]
fn hints() {
    fuzz(&targets::hints::TARGET);
}

#[test]
fn spool_log() {
    fuzz(&targets::spool_log::TARGET);
}

/// Each of these mistakes in the code under test is found (docs of the failpoints: crates/failpoint/src/table.rs).
#[test]
fn mistakes_are_found() {
    let failures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistakes");
    for (target, mistake) in [
        (&targets::segments::TARGET, "segment.keep_torn_tail"),
        (&targets::consensus_log::TARGET, "consensus.keeps_torn_tail"),
        (&targets::peer::TARGET, "consensus.forgets_votes"),
        (&targets::requests::TARGET, "manager.references_leak"),
    ] {
        let _guard = failpoint::activate(mistake);
        let caught = std::panic::catch_unwind(|| driver::fuzz(target, &failures));
        assert!(caught.is_err(), "{} does not find {mistake}", target.name);
    }
}
