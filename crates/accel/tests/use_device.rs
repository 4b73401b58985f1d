//! The device of a whole process: chosen once, by name. A process of its own, for there is no way back.

use tessera_accel::boundaries::{Cutter, Rule};
use tessera_accel::runtime::Options;
use tessera_accel::{DeviceError, Spec, device, use_device};

#[test]
fn a_process_computes_where_it_was_told_first_and_nowhere_else() {
    let options = Options { cpu_threads: 1, ..Options::default() };
    let nowhere = use_device(Spec::Cuda(Some(usize::MAX)), options.clone());
    assert!(matches!(nowhere.err(), Some(DeviceError::NoCuda { .. } | DeviceError::NoSuchDevice { .. })));
    // What failed is not chosen.
    let name = use_device(Spec::Emulated(1), options.clone()).unwrap().name();
    assert!(name.starts_with("emulated:0 + cpu"), "{name}");
    assert!(use_device(Spec::Emulated(1), options.clone()).is_ok());
    let refused = use_device(Spec::Cpu, options).err().unwrap();
    assert_eq!(refused, DeviceError::InUse { asked: "cpu".into(), in_use: "emulated:1".into() });

    // P10: cuts by the device's candidates are those of the CPU, however the stream comes.
    let mut state = 7u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let data: Vec<u8> = (0..300_000).map(next).collect();
    for rule in [Rule::cdc(4096, 32768).unwrap(), Rule::fixed(10_000).unwrap(), Rule::cbch(20, 9, 20).unwrap()] {
        let (mut on_device, mut on_cpu) = (Vec::new(), Vec::new());
        let mut cutter = Cutter::new(rule);
        cutter.feed(&data, &mut on_cpu);
        on_cpu.extend(cutter.finish());
        let mut rest = &data[..];
        for len in [1, 62, 63, 64, 5_000, 0, 90_000, 300_000] {
            let (piece, later) = rest.split_at(rest.len().min(len));
            cutter.feed_on(device(), piece, &mut on_device);
            rest = later;
        }
        on_device.extend(cutter.finish());
        assert_eq!(on_device, on_cpu, "{rule:?}");
    }
    let used = device().usage_by_device();
    assert!(used[0].0 == "emulated:0" && used[0].1.of("candidates").jobs == 7, "{used:?}");
}
