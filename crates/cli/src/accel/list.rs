//! `tessera accel list`.

use crate::exit::Outcome;
use crate::term::{Out, Table, units};
use serde_json::json;
use tessera_accel::runtime::{Backend, Options};
use tessera_accel::{Isa, Spec, cuda, emulated::Emulated};

/// A line of the list: name, description, memory in bytes, state.
type Line = (String, String, Option<u64>, String);

pub fn list(out: Out) -> Outcome {
    let sets: Vec<&str> = Isa::supported().iter().map(|isa| isa.name()).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cpu = format!("{threads} threads; {}", sets.join(", "));
    let emulated = Emulated::new(0);
    let mut lines: Vec<Line> = vec![("cpu".into(), cpu, None, format!("ready, uses {}", Isa::best().name()))];
    lines.extend(cuda_devices());
    let state = "ready; emulated:N gives N of them; never for speed";
    lines.push(("emulated".into(), emulated.description(), Some(emulated.memory_bytes()), state.into()));
    let mut table = Table::new("llrl", &["device", "what", "memory", "state"]);
    for (device, what, memory_bytes, state) in lines {
        if out.json {
            let ready = state.starts_with("ready");
            out.document(&json!({
                "device": device, "what": what, "memory_bytes": memory_bytes, "ready": ready, "state": state,
            }))?;
        }
        table.row([device, what, memory_bytes.map(units::bytes).unwrap_or_default(), state]);
    }
    if out.json { Ok(()) } else { out.table(&table) }
}

/// CUDA devices after a calibration, which also tests them.
fn cuda_devices() -> Vec<Line> {
    let none = |why: String| vec![("cuda".into(), "none".into(), None, why)];
    if let Err(why) = cuda::devices() {
        return none(why.to_string());
    }
    match Spec::Cuda(None).runtime(Options::default()) {
        Err(why) => none(why.to_string()),
        Ok((runtime, _)) => {
            runtime.calibrate();
            let line = |d: tessera_accel::runtime::DeviceState| {
                let state = d.retired.map_or("ready, gives the CPU's bytes".into(), |fault| fault.to_string());
                (d.name.to_string(), d.description, Some(d.memory_bytes), state)
            };
            runtime.devices().into_iter().map(line).collect()
        }
    }
}
