//! `tessera repair`, `scrub` and `gc`: passes that run in the cluster, watched from here.

use crate::args::UpkeepArgs;
use crate::exit::Outcome;
use crate::remote::Store;
use crate::term::{Out, Progress, units};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use tessera_wire::meta::{MaintainReply, Upkeep};

/// Between two looks at a pass.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Starts a pass of `what` and follows it to its end.
pub fn maintain(what: Upkeep, args: UpkeepArgs) -> Outcome {
    let out = Out::new(args.common.talk);
    let store = Store::connect(&args.common)?;
    let started = Instant::now();
    let mut state = store.maintain(what, !args.look)?;
    if !args.no_wait && !args.look {
        state = follow(&store, what, state, &out)?;
    }
    if out.json() {
        return out.document(&document(what, &state));
    }
    out.line(sentence(what, &state, started.elapsed()))?;
    let waiting = state.counters.iter().find(|c| c.name == "garbage_chunks").map_or(0, |c| c.value);
    if what == Upkeep::Gc && !state.running && waiting > 0 {
        out.note(format!(
            "{} chunks wait for sessions that began before they became garbage (after a restart of the manager: for those it may not know); they go by themselves",
            units::count(waiting)
        ));
    }
    Ok(())
}

fn follow(store: &Store, what: Upkeep, mut state: MaintainReply, out: &Out) -> Outcome<MaintainReply> {
    let progress = match what {
        Upkeep::Scrub => Progress::bytes(out, name(what), Some(state.total)),
        _ => Progress::things(out, name(what), Some(state.total)),
    };
    while state.running {
        progress.set(state.done, state.total.max(state.done));
        std::thread::sleep(LOOK_EVERY);
        state = store.maintain(what, false)?;
    }
    progress.finish();
    Ok(state)
}

fn name(what: Upkeep) -> &'static str {
    match what {
        Upkeep::Gc => "gc",
        Upkeep::Scrub => "scrub",
        Upkeep::Repair => "repair",
        Upkeep::Unknown => "upkeep",
    }
}

fn document(what: Upkeep, state: &MaintainReply) -> Value {
    let counters: Map<String, Value> = state.counters.iter().map(|c| (c.name.clone(), c.value.into())).collect();
    json!({"pass": name(what), "running": state.running, "done": state.done, "total": state.total, "counters": counters})
}

fn sentence(what: Upkeep, state: &MaintainReply, elapsed: Duration) -> String {
    let amount = |n: u64| match what {
        Upkeep::Scrub => units::bytes(n),
        Upkeep::Gc => format!("{} disks", units::count(n)),
        _ => format!("{} fragments", units::count(n)),
    };
    let words: Vec<String> = state.counters.iter().map(|c| phrase(&c.name, c.value)).collect();
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
    match state.running {
        true => format!("{} runs, {} of {}{words}", name(what), amount(state.done), amount(state.total)),
        false => format!("{} done in {}, {}{words}", name(what), units::duration(elapsed), amount(state.done)),
    }
}

/// A counter in words: `freed_bytes` 3 MiB is "3.0 MiB freed".
fn phrase(name: &str, value: u64) -> String {
    match name.strip_suffix("_bytes") {
        Some(name) => format!("{} {}", units::bytes(value), name.replace('_', " ")),
        None => format!("{} {}", units::count(value), name.replace('_', " ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_wire::meta::Counter;

    #[test]
    fn a_pass_ends_in_a_sentence_with_units() {
        let state = MaintainReply {
            running: false,
            done: 3 << 20,
            total: 3 << 20,
            counters: vec![Counter { name: "rot_found".into(), value: 1 }],
        };
        assert_eq!(
            sentence(Upkeep::Scrub, &state, Duration::from_secs(2)),
            "scrub done in 2.0 s, 3.0 MiB: 1 rot found"
        );
        let state = MaintainReply { running: true, ..state };
        assert!(sentence(Upkeep::Repair, &state, Duration::ZERO).starts_with("repair runs, 3,145,728 fragments of"));
        assert_eq!(phrase("freed_bytes", 3 << 20), "3.0 MiB freed");
    }
}
