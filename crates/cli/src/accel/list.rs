//! `tessera accel list`.

use crate::exit::Outcome;
use crate::term::{Out, Table, units};
use serde_json::json;
use tessera_accel::runtime::{Backend, Options};
use tessera_accel::{Isa, Spec, cuda, emulated::Emulated};

/// A line of the list.
struct Line {
    name: String,
    what: String,
    memory_bytes: Option<u64>,
    state: String,
}

pub fn list(output: Out) -> Outcome {
    let out = output;
    let mut lines = vec![cpu()];
    lines.extend(cuda_devices());
    let emulated = Emulated::new(0);
    lines.push(Line {
        name: "emulated".into(),
        what: emulated.description(),
        memory_bytes: Some(emulated.memory_bytes()),
        state: "ready; emulated:N gives N of them; never for speed".into(),
    });
    if out.json {
        return lines.iter().try_for_each(|l| {
            let ready = l.state.starts_with("ready");
            out.document(&json!({"device": l.name, "what": l.what, "memory_bytes": l.memory_bytes, "ready": ready, "state": l.state}))
        });
    }
    let mut table = Table::new("llrl", &["device", "what", "memory", "state"]);
    for l in lines {
        table.row([l.name, l.what, l.memory_bytes.map(units::bytes).unwrap_or_default(), l.state]);
    }
    out.table(&table)
}

fn cpu() -> Line {
    let sets: Vec<&str> = Isa::supported().iter().map(|isa| isa.name()).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    Line {
        name: "cpu".into(),
        what: format!("{threads} threads; {}", sets.join(", ")),
        memory_bytes: None,
        state: format!("ready, uses {}", Isa::best().name()),
    }
}

/// CUDA devices after a calibration, which also tests them.
fn cuda_devices() -> Vec<Line> {
    if let Err(why) = cuda::devices() {
        return vec![Line { name: "cuda".into(), what: "none".into(), memory_bytes: None, state: why.to_string() }];
    }
    match Spec::Cuda(None).runtime(Options::default()) {
        Err(why) => vec![Line { name: "cuda".into(), what: "none".into(), memory_bytes: None, state: why.to_string() }],
        Ok((runtime, _)) => {
            runtime.calibrate();
            let line = |d: tessera_accel::runtime::DeviceState| Line {
                name: d.name.to_string(),
                what: d.description,
                memory_bytes: Some(d.memory_bytes),
                state: d.retired.map_or("ready, gives the CPU's bytes".into(), |fault| fault.to_string()),
            };
            runtime.devices().into_iter().map(line).collect()
        }
    }
}
