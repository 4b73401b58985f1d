//! The host side of CUDA against a stand-in for the driver library (kernels/host/driver.c), which runs the kernels
//! on the emulator: contexts, streams, pinned memory, arguments, memory running out, in-place data. It says nothing
//! about a real GPU's speed or compiler; P10 on real ones is the business of the unit tests, which use what there is.
#![cfg(all(feature = "cuda", target_os = "linux"))]

use cudarc::driver::result;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use tessera_accel::cuda;
use tessera_accel::erasure::{Code, Matrix};
use tessera_accel::hash::chunk_hash;
use tessera_accel::runtime::operations::{Coding, HashBatch, Multiply};
use tessera_accel::runtime::{Backend, Operation, Options, Runtime, Target};

const MARK: &str = "TESSERA_TEST_CUDA_STAND_IN";

/// The library is found when a process starts, so the test runs itself again where the stand-in is first.
#[test]
fn jobs_through_the_driver_interface() {
    if std::env::var_os(MARK).is_some() {
        return through_the_driver();
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
    std::fs::create_dir_all(&folder).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/host/driver.c");
    let built = Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
        .args(["-std=gnu11", "-O2", "-shared", "-fPIC", "-fno-strict-aliasing", source, "-o"])
        .arg(folder.join("libcuda.so.1"))
        .status();
    assert!(built.unwrap().success());
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "jobs_through_the_driver_interface", "--nocapture"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(MARK, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success(), "{said}{}", String::from_utf8_lossy(&again.stderr));
    assert!(said.contains("the stand-in did 46 jobs"), "{said}");
}

fn through_the_driver() {
    let devices = cuda::devices().unwrap();
    assert_eq!(devices.iter().map(|d| d.name()).collect::<Vec<_>>(), ["cuda:0", "cuda:1"]);
    assert_eq!(devices[1].description(), "Stand-in 1");
    let memory = Arc::new(devices[0].pinned());
    let backends = devices.into_iter().map(|d| Arc::new(d) as Arc<dyn Backend>).collect();
    let runtime = Runtime::new(backends, Options { memory, cpu_threads: 1, ..Options::default() }).unwrap();
    runtime.calibrate();
    assert!(runtime.devices().iter().all(|d| d.retired.is_none()), "{:#?}", runtime.devices());
    let before = done(&runtime);

    let code = Code::new(6, 3, Matrix::Cauchy1).unwrap();
    let bytes: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    let jobs: Vec<_> = (0..20)
        .map(|i| {
            let names = HashBatch::names(&[i * 1000, 100_000]).unwrap();
            let mut input = runtime.buffer(names.input_bytes()).unwrap();
            names.pack(0, &bytes[..i * 1000], &mut input);
            names.pack(1, &bytes[i..i + 100_000], &mut input);
            let hashing = runtime.submit(Arc::new(names.clone()), input, Target::AnyDevice).unwrap();
            let parity = Multiply::encode(&code, 4096, 2);
            let mut input = runtime.buffer(parity.input_bytes()).unwrap();
            input.copy_from_slice(&bytes[i..i + parity.input_bytes()]);
            let encoding = runtime.submit(Arc::new(parity.clone()), input, Target::AnyDevice).unwrap();
            (i, names, hashing, parity, encoding)
        })
        .collect();
    for (i, names, hashing, parity, encoding) in jobs {
        let hashed = hashing.wait().unwrap();
        let expected = [chunk_hash(&bytes[..i * 1000]), chunk_hash(&bytes[i..i + 100_000])];
        assert_eq!(names.read_names(&hashed.output), expected);
        let encoded = encoding.wait().unwrap();
        assert!(encoded.device.starts_with("cuda:"));
        let chunk: Vec<&[u8]> = bytes[i..].chunks(4096).take(6).collect();
        let mut room = vec![vec![0; 4096]; 3];
        let mut slices: Vec<&mut [u8]> = room.iter_mut().map(|r| r.as_mut_slice()).collect();
        code.encode(&chunk, 4096, &mut slices).unwrap();
        (0..3).for_each(|row| assert_eq!(encoded.output[parity.target_range(0, row)], room[row]));
    }
    assert_eq!(done(&runtime) - before, 40);
    (0..2).for_each(|index| data_in_place(&runtime, index, &bytes));
    data_that_stays(&runtime);

    // More than the stand-in's 16 MiB: the CPU does it, the device stays.
    let large = HashBatch::names(&[20 << 20]).unwrap();
    let input = runtime.buffer(large.input_bytes()).unwrap();
    let ended = runtime.submit(Arc::new(large), input, Target::AnyDevice).unwrap().wait().unwrap();
    assert!(ended.device.starts_with("cpu") && runtime.devices().iter().all(|d| d.retired.is_none()));
    drop(ended);
    println!("the stand-in did {} jobs", done(&runtime) - before);
    drop(runtime);
    assert_eq!(live(), 0, "device memory, pinned memory and contexts are all given back");
}

/// Data that another library of the process is about to put into its own memory on device `index`: a job that is given
/// that library's stream begins when the data is there, reads it where it is, and leaves it there.
#[allow(unsafe_code)]
fn data_in_place(runtime: &Runtime, index: usize, bytes: &[u8]) {
    let code = Code::new(4, 2, Matrix::Cauchy1).unwrap();
    let parity = Multiply::encode(&code, 8192, 1);
    let bytes = &bytes[index..index + parity.input_bytes()];
    let chunk: Vec<&[u8]> = bytes.chunks(8192).collect();
    let mut expected = vec![vec![0; 8192]; 2];
    let mut targets: Vec<&mut [u8]> = expected.iter_mut().map(|r| r.as_mut_slice()).collect();
    code.encode(&chunk, 8192, &mut targets).unwrap();

    let device = result::device::get(index as i32).unwrap();
    // SAFETY: the other library's side, by the driver's rules: its context is retained and current before anything is
    // made in it; the host's bytes outlive the copy; each thing is given back once, when nobody uses it any more.
    unsafe {
        result::ctx::set_current(result::primary_ctx::retain(device).unwrap()).unwrap();
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
        let address = result::malloc_sync(bytes.len()).unwrap();
        result::memcpy_htod_async(address, bytes, stream).unwrap();
        // The stand-in's device memory is the host's.
        let theirs =
            || std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(address as usize), bytes.len());
        assert!(theirs().iter().all(|b| *b == 0xa5), "the copy has not happened yet");
        // First after what is queued there, then with what is there.
        for after in [Some(stream.expose_provenance() as u64), None] {
            let job = runtime.submit_in_place(Arc::new(parity.clone()), index, address, after).unwrap();
            let ended = job.wait().unwrap();
            assert_eq!(*ended.device, *format!("cuda:{index}"));
            assert!(ended.input.is_none());
            (0..2).for_each(|row| assert!(ended.output[parity.target_range(0, row)] == expected[row], "{after:?}"));
            assert!(theirs() == bytes, "it is only read");
        }
        // Still theirs to give back: the driver takes a block or a stream once.
        result::free_sync(address).unwrap();
        result::stream::destroy(stream).unwrap();
        result::primary_ctx::release(device).unwrap();
    }
}

/// Data on both devices at once: each is given back in its own context.
fn data_that_stays(runtime: &Runtime) {
    let hashing: Arc<dyn Operation> = Arc::new(HashBatch::names(&[5_000]).unwrap());
    let resident = |index| {
        let mut buffer = runtime.buffer(hashing.input_bytes()).unwrap();
        buffer.fill(index as u8);
        runtime.resident(index, buffer).unwrap().unwrap()
    };
    let both: Vec<_> = (0..2).map(resident).collect();
    both.iter().for_each(|data| runtime.on_resident(data, &hashing, 1).unwrap().unwrap());
}

fn done(runtime: &Runtime) -> u64 {
    runtime.devices().iter().flat_map(|d| d.done.values()).map(|work| work.jobs).sum()
}

/// What the stand-in still holds.
fn live() -> i32 {
    // SAFETY: the library is loaded already; the function takes nothing and counts.
    #[allow(unsafe_code)]
    unsafe {
        let library = libloading::Library::new("libcuda.so.1").unwrap();
        let count: libloading::Symbol<'_, unsafe extern "C" fn() -> i32> =
            library.get(b"tessera_stand_in_live").unwrap();
        count()
    }
}
