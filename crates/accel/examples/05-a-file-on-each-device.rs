//! A real file, coded 4+2 on every device there is: the parity is the same everywhere, and so is what is rebuilt of two
//! lost fragments. `cargo run --release --example 05-a-file-on-each-device -- FILE [DEVICE…]`; without devices: the CPU,
//! CUDA devices if there are any, and an emulated one, which gets the first 256 KiB only.

use std::time::Instant;
use tessera_accel::erasure::{Code, Matrix, data_slice, fragment_len};
use tessera_accel::runtime::Options;
use tessera_accel::{Coder, Device, EncodeJob, Hash, ReconstructJob, Spec};

/// What an emulated device does in about a second.
const EMULATED_BYTES: usize = 256 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().unwrap_or_else(|| std::env::args().next().unwrap_or_default());
    let named: Vec<Spec> = words.map(|word| word.parse()).collect::<Result<_, _>>()?;
    let file = std::fs::read(&path)?;
    println!("{path}, {} bytes", file.len());
    let specs = if named.is_empty() { vec![Spec::Cpu, Spec::Cuda(None), Spec::Emulated(1)] } else { named };
    for spec in specs {
        let device = match spec.open(Options::default()) {
            Ok(device) => device,
            Err(why) => {
                println!("{spec}: {why}");
                continue;
            }
        };
        let most = if matches!(spec, Spec::Emulated(_)) { EMULATED_BYTES } else { usize::MAX };
        let bytes = &file[..file.len().min(most)];
        let start = Instant::now();
        let on_device = code_and_lose(device.as_ref(), bytes)?;
        let took = start.elapsed();
        let on_cpu = code_and_lose(&tessera_accel::Cpu::reference(), bytes)?;
        assert!(on_device == on_cpu, "{spec} gives other bytes than the reference");
        println!("{spec}: {} bytes in {took:.1?}, equal bytes; name {}", bytes.len(), on_device.1);
        for (name, usage) in device.usage_by_device() {
            let work = usage.0.iter().filter(|(_, work)| work.jobs > 0);
            let work: Vec<String> = work.map(|(what, work)| format!("{what} {} bytes", work.bytes)).collect();
            println!("    {name}: {}", work.join(", "));
        }
    }
    Ok(())
}

/// Parity, the file's name, and fragments 0 and 2 rebuilt from the others.
#[allow(clippy::type_complexity)]
fn code_and_lose(
    device: &dyn Device,
    bytes: &[u8],
) -> Result<(Vec<Vec<u8>>, Hash, Vec<Vec<u8>>), Box<dyn std::error::Error>> {
    let code = Coder::from(Code::new(4, 2, Matrix::Cauchy1)?);
    let frag_len = fragment_len(bytes.len(), code.k());
    let data: Vec<&[u8]> = (0..code.k()).map(|i| data_slice(bytes, code.k(), i)).collect();
    let mut parity = vec![vec![0; frag_len]; code.m()];
    let room = parity.iter_mut().map(|p| p.as_mut_slice()).collect();
    device.encode(&code, &mut [EncodeJob { data: data.clone(), frag_len, parity: room }])?;
    let present = vec![(1, data[1]), (3, data[3]), (4, parity[0].as_slice()), (5, parity[1].as_slice())];
    let mut lost = vec![vec![0; data[0].len()], vec![0; data[2].len()]];
    let out = lost.iter_mut().map(|l| l.as_mut_slice()).collect();
    device.reconstruct(&code, &mut [ReconstructJob { frag_len, present, wanted: vec![0, 2], out }])?;
    assert!(lost[0] == data[0] && lost[1] == data[2], "what was rebuilt is not what was lost");
    Ok((parity, device.hash(&[bytes])[0], lost))
}
