//! Jobs, queues and devices that fail. Each test compares results with the CPU's.
#![allow(unsafe_code)]

use crate::boundaries::{Params, candidates};
use crate::emulated::Emulated;
use crate::hash::{Hash, chunk_hash};
use crate::isa::Isa;
use crate::kernels::Launch;
use crate::runtime::operations::{FindCandidates, HashBatch};
use crate::runtime::*;
use crate::testing::test_bytes;
use crate::testing::{Blocks, Faulty, Handle, Plan};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn options() -> Options {
    Options { cpu_threads: 2, ..Options::default() }
}

fn runtime(plans: &[Plan], options: Options) -> (Runtime, Vec<Arc<Faulty>>) {
    let devices: Vec<Arc<Faulty>> = plans.iter().enumerate().map(|(i, plan)| Faulty::new(i, *plan)).collect();
    let backends = devices.iter().map(|d| Arc::new(Handle(d.clone())) as Arc<dyn Backend>).collect();
    (Runtime::new(backends, options).unwrap(), devices)
}

const LENS: [usize; 3] = [700, 5000, 1];

fn expected(seed: u64) -> Vec<Hash> {
    LENS.iter().enumerate().map(|(i, len)| chunk_hash(&test_bytes(seed + i as u64, *len))).collect()
}

/// A job whose result depends on `seed`: operation and input.
fn packed(runtime: &Runtime, seed: u64) -> (HashBatch, Buffer) {
    let operation = HashBatch::names(&LENS).unwrap();
    let mut input = runtime.buffer(operation.input_bytes()).unwrap();
    for (i, len) in LENS.iter().enumerate() {
        operation.pack(i, &test_bytes(seed + i as u64, *len), &mut input);
    }
    (operation, input)
}

fn submit(runtime: &Runtime, seed: u64, target: Target) -> Job {
    let (operation, input) = packed(runtime, seed);
    runtime.submit(Arc::new(operation), input, target).unwrap()
}

fn check(done: JobOutput, seed: u64) -> Arc<str> {
    assert_eq!(HashBatch::names(&LENS).unwrap().read_names(&done.output), expected(seed));
    done.device
}

const ANY: Target = Target::AnyDevice;

#[test]
fn several_devices_drain_one_queue_and_the_cpu_serves_its_own() {
    let (runtime, _) = runtime(&[Plan::Healthy; 3], options());
    let jobs: Vec<Job> = (0..60).map(|seed| submit(&runtime, seed, ANY)).collect();
    for (seed, job) in jobs.into_iter().enumerate() {
        assert!(check(job.wait().unwrap(), seed as u64).starts_with("emulated:"));
    }
    let cpu = submit(&runtime, 7, Target::Cpu);
    assert!(check(cpu.wait().unwrap(), 7).starts_with("cpu ("));
    let second = submit(&runtime, 8, Target::Device(1));
    assert_eq!(&*check(second.wait().unwrap(), 8), "emulated:1");
    let done: u64 = runtime.devices().iter().filter_map(|d| d.done.get("hash")).map(|w| w.jobs).sum();
    assert_eq!((done, runtime.done_on_cpu()["hash"].jobs), (61, 1));
    assert_eq!(runtime.queues(), Queues::default());
    let use_ = runtime.buffers();
    assert!(use_.reused > 0 && use_.idle_buffers > 0, "{use_:?}");
}

/// P10, and no job is lost: whatever fault a device has, every job ends with the CPU's bytes.
#[test]
fn a_device_that_fails_in_mid_job_is_retired_and_the_cpu_gives_equal_bytes() {
    for plan in [
        Plan::NeverOpens,
        Plan::LaunchFails(0),
        Plan::LaunchFails(5),
        Plan::UploadFails(2),
        Plan::DiesRunning(0),
        Plan::DiesRunning(4),
        Plan::Hangs(3),
        Plan::Panics(1),
        Plan::ReleasePanics(2),
    ] {
        let keep_device_memory = !matches!(plan, Plan::ReleasePanics(_));
        let options = Options { stuck_after: Duration::from_millis(20), keep_device_memory, ..options() };
        let (runtime, _) = runtime(&[plan], options);
        let jobs: Vec<Job> = (0..12).map(|seed| submit(&runtime, seed, ANY)).collect();
        for (seed, job) in jobs.into_iter().enumerate() {
            let ended = job.wait();
            if let (Plan::Panics(_), Err(JobError::Panicked { .. })) = (plan, &ended) {
                continue; // A bug in an operation ends its own job alone.
            }
            check(ended.unwrap_or_else(|e| panic!("{plan:?}: {e}")), seed as u64);
        }
        let device = &runtime.devices()[0];
        assert!(plan == Plan::Panics(1) || device.retired.is_some(), "{plan:?}");
        assert!(!matches!(plan, Plan::Hangs(_)) || matches!(device.retired, Some(Fault::Stuck { .. })));
        // Later jobs go to the CPU at once.
        if device.retired.is_some() {
            let later = submit(&runtime, 99, Target::Device(0));
            assert!(check(later.wait().unwrap(), 99).starts_with("cpu"));
        }
        assert_eq!(Queues { fallen_back: 0, ..runtime.queues() }, Queues::default(), "{plan:?}");
    }
}

#[test]
fn the_other_devices_go_on_when_one_is_lost() {
    let (runtime, _) = runtime(&[Plan::Healthy, Plan::DiesRunning(1)], options());
    let jobs: Vec<Job> = (0..40).map(|seed| submit(&runtime, seed, ANY)).collect();
    for (seed, job) in jobs.into_iter().enumerate() {
        check(job.wait().unwrap(), seed as u64);
    }
    let bound_to_it = submit(&runtime, 50, Target::Device(1));
    check(bound_to_it.wait().unwrap(), 50);
    assert!(runtime.devices()[0].retired.is_none());
}

#[test]
fn a_device_that_gives_wrong_bytes_is_found_by_calibration_and_retired() {
    let (runtime, _) = runtime(&[Plan::FlipsBits(0), Plan::Healthy], options());
    let calibration = runtime.calibrate();
    let devices = runtime.devices();
    assert!(matches!(devices[0].retired, Some(Fault::WrongBytes { .. })), "{:?}", devices[0]);
    assert_eq!(devices[1].retired, None);
    assert!(calibration.cost("emulated:0", "hash").is_none());
    for primitive in [
        "hash",
        "tree",
        "encode",
        "reconstruct",
        "candidates",
        "xor-encode",
        "xor-reconstruct",
        "update",
        "verify",
        "xor-update",
        "xor-verify",
    ] {
        assert!(calibration.cost(CPU, primitive).is_some() && calibration.cost("emulated:1", primitive).is_some());
        // Whatever the measurements say, an emulated device is not chosen.
        let decision = runtime.explain(primitive, 1 << 20);
        assert_eq!((decision.on_device, decision.why), (false, Why::NoDevice), "{decision}");
    }
    let auto = submit(&runtime, 3, Target::Auto);
    assert!(check(auto.wait().unwrap(), 3).starts_with("cpu"));
}

/// Hashes more than a small device has room for; returns what did it.
fn hash_large(runtime: &Runtime) -> Arc<str> {
    let large = vec![5u8; 100_000];
    let operation = HashBatch::names(&[large.len()]).unwrap();
    let mut input = runtime.buffer(operation.input_bytes()).unwrap();
    operation.pack(0, &large, &mut input);
    let done = runtime.submit(Arc::new(operation.clone()), input, ANY).unwrap().wait().unwrap();
    assert_eq!(operation.read_names(&done.output), [chunk_hash(&large)]);
    done.device
}

#[test]
fn a_job_too_large_for_the_device_is_done_by_the_cpu_and_the_device_stays() {
    let small = Faulty::on(Emulated::new(0).with_memory(64 << 10), Plan::Healthy);
    let runtime = Runtime::new(vec![Arc::new(Handle(small))], options()).unwrap();
    assert!(hash_large(&runtime).starts_with("cpu"));
    assert_eq!(runtime.queues().fallen_back, 1);
    assert_eq!(&*check(submit(&runtime, 1, ANY).wait().unwrap(), 1), "emulated:0");
}

/// The job that finds too little memory is not the one whose memory cannot be freed.
#[test]
fn a_job_is_kept_when_freeing_memory_for_it_panics() {
    let small = Faulty::on(Emulated::new(0).with_memory(64 << 10), Plan::ReleasePanics(0));
    let runtime = Runtime::new(vec![Arc::new(Handle(small))], options()).unwrap();
    assert!(hash_large(&runtime).starts_with("cpu"));
    assert!(runtime.devices()[0].retired.is_some());
}

#[test]
fn a_saturated_device_makes_its_submitters_wait_not_the_memory_grow() {
    let (probe, _) = runtime(&[], options());
    let (operation, input) = packed(&probe, 0);
    let one_job = input.len() + operation.output_bytes();
    let (runtime, devices) = runtime(&[Plan::Healthy], Options { bound_bytes: 3 * one_job, ..options() });
    devices[0].shut();
    let held: Vec<Job> = (0..3).map(|seed| submit(&runtime, seed, ANY)).collect();
    let most = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            (10..40u64).map(|seed| (seed, submit(&runtime, seed, ANY))).for_each(|(seed, job)| {
                most.fetch_max(runtime.queues().bytes, Ordering::SeqCst);
                check(job.wait().unwrap(), seed);
            });
        });
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((most.load(Ordering::SeqCst), runtime.queues().bytes), (0, 3 * one_job), "the submitter waits");
        devices[0].open();
        late.join().unwrap();
    });
    held.into_iter().enumerate().for_each(|(seed, job)| drop(check(job.wait().unwrap(), seed as u64)));
    assert!(most.load(Ordering::SeqCst) <= 3 * one_job);
}

#[test]
fn a_runtime_that_is_dropped_ends_every_job() {
    let (runtime, devices) = runtime(&[Plan::Healthy], Options { slots: 1, ..options() });
    devices[0].shut();
    let running = submit(&runtime, 0, ANY);
    until(|| runtime.queues().running == 1);
    let waiting = submit(&runtime, 1, ANY);
    let dropper = std::thread::spawn(move || drop(runtime));
    assert_eq!(waiting.wait().unwrap_err(), JobError::Stopped);
    devices[0].open();
    check(running.wait().unwrap(), 0);
    dropper.join().unwrap();
}

#[test]
fn data_on_the_device_is_read_where_it_is() {
    let (runtime, _) = runtime(&[Plan::Healthy], options());
    let (operation, theirs) = packed(&runtime, 4);
    let address = theirs.as_ptr() as u64; // An emulated device's memory is the host's.
    #[allow(unsafe_code)]
    // SAFETY: `theirs` outlives the job.
    let job = unsafe { runtime.submit_in_place(Arc::new(operation), 0, address, Some(0)) }.unwrap();
    let done = job.wait().unwrap();
    assert!(done.input.is_none());
    check(done, 4);
    drop(theirs);
}

/// A job whose input lies on the device, at `address`.
fn in_place(runtime: &Runtime, operation: impl Operation + 'static, address: u64) -> Result<Job, SubmitError> {
    #[allow(unsafe_code)]
    // SAFETY: callers keep the data at the address until the job has ended.
    unsafe {
        runtime.submit_in_place(Arc::new(operation), 0, address, None)
    }
}

/// P14: the CPU cannot finish jobs on a device's data, so each kind of failure has an error of its own.
#[test]
fn jobs_on_data_of_a_device_that_cannot_be_done_say_why() {
    let (healthy, _) = runtime(&[Plan::Healthy], options());
    let (operation, theirs) = packed(&healthy, 4);
    let address = theirs.as_ptr() as u64;
    for wrong in [address + 1, address + 8] {
        let refused = in_place(&healthy, operation.clone(), wrong).unwrap_err();
        assert!(matches!(refused, SubmitError::Misaligned { primitive: "hash", address } if address == wrong));
    }
    let cramped = in_place(&healthy, Cramped, address).unwrap().wait().unwrap_err();
    assert_eq!(cramped, JobError::Cramped { primitive: "cramped", device: "emulated:0".into() });
    let input = healthy.buffer(16).unwrap();
    assert!(healthy.submit(Arc::new(Cramped), input, ANY).unwrap().wait().unwrap().device.starts_with("cpu"));

    let tiny = Faulty::on(Emulated::new(0).with_memory(256), Plan::Healthy);
    let tiny = Runtime::new(vec![Arc::new(Handle(tiny))], options()).unwrap();
    let full = in_place(&tiny, operation.clone(), address).unwrap().wait().unwrap_err();
    assert!(
        matches!(&full, JobError::NoDeviceMemory { device, bytes } if device == "emulated:0" && *bytes > 256),
        "{full}"
    );
    assert_eq!(tiny.devices()[0].retired, None);
    check(submit(&tiny, 1, ANY).wait().unwrap(), 1);

    let (dying, _) = runtime(&[Plan::DiesRunning(0)], options());
    let lost = in_place(&dying, operation.clone(), address).unwrap().wait().unwrap_err();
    assert_eq!(lost, JobError::Lost { device: "emulated:0".into() });
    check(in_place(&healthy, operation, address).unwrap().wait().unwrap(), 4);
    assert_eq!(Queues { fallen_back: 0, ..tiny.queues() }, Queues::default());
    drop(theirs);
}

/// An operation whose result never fits the device's output format.
#[derive(Debug)]
struct Cramped;

// SAFETY: it launches nothing.
unsafe impl Operation for Cramped {
    fn primitive(&self) -> &'static str {
        "cramped"
    }
    fn sizes(&self) -> Sizes {
        Sizes { input: 16, output: 16, ..Sizes::default() }
    }

    fn on_cpu(&self, _: Isa, input: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        output.copy_from_slice(input);
        Ok(())
    }
    fn launches(&self, _: &Addresses) -> Vec<Launch> {
        Vec::new()
    }
    fn finish(&self, _: &mut [u8]) -> bool {
        false
    }
}

/// P14: if an output must grow and there is no memory, only that job fails; the next one succeeds.
#[test]
fn a_result_that_no_memory_is_left_for_ends_its_own_job() {
    let params = Params::new(4096, 65536).unwrap().with_everything_a_candidate();
    let noise = test_bytes(8, 200_000);
    let mut found = Vec::new();
    candidates(&params, &[], &noise, &mut found);
    // A window that passes, repeated: more candidates than an output has room for.
    let at = found[0].position;
    let data: Vec<u8> = noise[at - 64..at].iter().copied().cycle().take(100_000).collect();
    let memory = Arc::new(Blocks(AtomicUsize::new(2)));
    let runtime = Runtime::new(Vec::new(), Options { memory: memory.clone(), ..options() }).unwrap();
    let operation = Arc::new(FindCandidates::new(&params, 0, data.len()).unwrap());
    let search = || {
        let mut input = runtime.buffer(data.len()).unwrap();
        input.copy_from_slice(&data);
        runtime.submit(operation.clone(), input, Target::Auto).unwrap().wait()
    };
    assert!(
        matches!(search().unwrap_err(), JobError::NoMemory(NoMemory { bytes }) if bytes > operation.output_bytes())
    );
    memory.0.store(1, Ordering::SeqCst);
    let (done, mut all, mut expected) = (search().unwrap(), Vec::new(), Vec::new());
    operation.read(&done.output, &mut all);
    candidates(&params, &[], &data, &mut expected);
    assert_eq!(all, expected);
}

/// P14.
#[test]
fn what_cannot_be_is_refused() {
    let (runtime, _) = runtime(&[Plan::Healthy], options());
    let (operation, mut input) = packed(&runtime, 0);
    input.resize(3).unwrap();
    let refused = runtime.submit(Arc::new(operation.clone()), input, ANY);
    assert!(matches!(refused, Err(SubmitError::InputLength { got: 3, .. })));
    let (operation, input) = packed(&runtime, 0);
    let refused = runtime.submit(Arc::new(operation), input, Target::Device(1));
    assert!(matches!(refused, Err(SubmitError::NoSuchDevice { index: 1, count: 1 })));
}

/// An operation with a bug.
#[derive(Debug)]
struct Buggy;

// SAFETY: it launches nothing.
unsafe impl Operation for Buggy {
    fn primitive(&self) -> &'static str {
        "buggy"
    }
    fn sizes(&self) -> Sizes {
        Sizes { input: 16, output: 16, ..Sizes::default() }
    }

    fn on_cpu(&self, _: Isa, _: &[u8], _: &mut Buffer) -> Result<(), NoMemory> {
        panic!("as planned")
    }
    fn launches(&self, _: &Addresses) -> Vec<Launch> {
        panic!("as planned")
    }
}

#[test]
fn an_operation_that_panics_ends_its_own_job_and_no_other() {
    let (runtime, _) = runtime(&[Plan::Healthy], options());
    for target in [Target::AnyDevice, Target::Cpu] {
        let input = runtime.buffer(16).unwrap();
        let job = runtime.submit(Arc::new(Buggy), input, target).unwrap();
        assert_eq!(job.wait().unwrap_err(), JobError::Panicked { primitive: "buggy" });
        check(submit(&runtime, 1, target).wait().unwrap(), 1);
    }
    assert_eq!(runtime.devices()[0].retired, None);
}

/// Waits for what another thread is about to do.
fn until(mut reached: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !reached() {
        assert!(Instant::now() < limit, "it never came");
        std::thread::yield_now();
    }
}
