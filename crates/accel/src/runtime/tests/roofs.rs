//! Upper bounds for figures: transfers alone, copies inside a device, kernels alone on resident data.

use super::kernels::Bench;
use crate::device::Work;
use crate::emulated::Emulated;
use crate::erasure::{Code, Matrix};
use crate::runtime::operations::{CopyInside, KernelsAlone, Multiply, Transfer};
use crate::runtime::{Addresses, Operation, Options, Runtime, SubmitError};
use crate::testing::test_bytes;
use std::sync::Arc;

#[test]
fn transfers_move_what_they_say_and_bring_zeros() {
    let mut bench = Bench::new();
    for (up_bytes, down_bytes) in [(0, 0), (1, 0), (0, 1), (100, 100), (3, 5000)] {
        let output = bench.run(&Transfer { up_bytes, down_bytes }, |input| input.fill(7));
        assert_eq!(output[..], vec![0; down_bytes][..]);
    }
    let code = Code::new(4, 2, Matrix::Cauchy1).unwrap();
    let parity = Multiply::encode(&code, 160, 1);
    assert_eq!(Transfer::of(&parity), Transfer { up_bytes: 640, down_bytes: 320 });
}

#[test]
fn copies_inside_a_device_are_copies() {
    let mut bench = Bench::new();
    for len in [0, 8, 16, 2040, 2048, 2056, 4999] {
        let bytes = test_bytes(len as u64, len / 8 * 8);
        assert!(bench.run(&CopyInside::up_to(len), |input| input.copy_from_slice(&bytes))[..] == bytes[..]);
    }
}

#[test]
fn kernels_run_alone_on_resident_data() {
    let options = Options { cpu_threads: 1, ..Options::default() };
    let runtime = Runtime::new(vec![Arc::new(Emulated::new(0))], options).unwrap();
    let code = Code::new(4, 2, Matrix::Cauchy1).unwrap();
    let parity: Arc<dyn Operation> = Arc::new(Multiply::encode(&code, 160, 1));
    let alone = KernelsAlone::new(parity.clone(), 3);
    let at = Addresses { tables: 256, input: 512, result: 1024 };
    assert_eq!(alone.launches(&at), [parity.launches(&at), parity.launches(&at), parity.launches(&at)].concat());
    assert_eq!((alone.sizes().output, alone.sizes().scratch), (0, parity.output_bytes()));

    let alone: Arc<dyn Operation> = Arc::new(alone);
    let put = |bytes| runtime.resident(0, runtime.buffer(bytes).unwrap()).unwrap().unwrap();
    runtime.on_resident(&put(640), &alone, 5).unwrap().unwrap();
    let state = &runtime.devices()[0];
    assert_eq!((state.retired.clone(), state.done["encode"]), (None, Work { jobs: 5, bytes: 5 * 640 }));
    assert!(runtime.done_on_cpu().is_empty());
    let refused = runtime.on_resident(&put(639), &alone, 1);
    assert!(matches!(refused, Err(SubmitError::InputLength { expected: 640, got: 639, .. })));
    assert!(runtime.resident(1, runtime.buffer(1).unwrap()).is_none());
}
