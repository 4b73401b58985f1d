//! Which panics end a process. Each test runs this program again as that process.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use tessera_accel::panics::{contain, end_on_panic};

/// Names the panic that the process of a test is to have.
const PANICS: &str = "TESSERA_TEST_PANICS";

/// Runs the test `in_a_process` in a process of its own.
fn process(panics: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    let args = ["in_a_process", "--exact", "--nocapture", "--test-threads", "1"];
    Command::new(program).args(args).env(PANICS, panics).output().unwrap()
}

#[test]
fn in_a_process() {
    let Ok(panics) = std::env::var(PANICS) else { return };
    end_on_panic();
    let thread = std::thread::Builder::new().name("side".into());
    let ended = thread.spawn(move || match panics.as_str() {
        "contained" => assert!(contain(|| panic!("of a device")).is_err()),
        "after" => {
            let _ = contain(|| panic!("of a device"));
            panic!("of a thread");
        }
        "stream" => {
            let options = tessera_accel::runtime::Options { cpu_threads: 1, ..Default::default() };
            let runtime = tessera_accel::runtime::Runtime::new(vec![std::sync::Arc::new(Broken)], options).unwrap();
            while runtime.devices().iter().any(|device| &*device.name == "broken:0" && device.retired.is_none()) {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        _ => panic!("of a thread"),
    });
    // Where nothing ends the process, a test that joins the thread goes on.
    println!("joined: {}", ended.unwrap().join().is_ok());
}

#[test]
fn a_contained_panic_ends_nothing() {
    let output = process("contained");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("joined: true"), "{output:?}");
}

#[test]
fn any_other_panic_of_a_side_thread_ends_the_process_and_says_why() {
    for panics in ["plain", "after"] {
        let output = process(panics);
        assert_eq!(output.status.signal(), Some(6), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("thread 'side'") && said.contains("of a thread") && said.contains("this is a bug"),
            "{said}"
        );
        assert!(!String::from_utf8_lossy(&output.stdout).contains("joined"), "{output:?}");
    }
}

#[derive(Debug)]
struct Broken;

impl tessera_accel::runtime::Backend for Broken {
    fn name(&self) -> &str {
        "broken:0"
    }
    fn description(&self) -> String {
        "its driver lacks a function".into()
    }
    fn memory_bytes(&self) -> u64 {
        1 << 20
    }
    fn calibration_bytes(&self) -> usize {
        1 << 10
    }
    fn stream(&self) -> Result<Box<dyn tessera_accel::runtime::Stream>, tessera_accel::runtime::Fault> {
        panic!("Expected symbol in library: cuStreamCreate")
    }
}

#[test]
fn a_driver_that_panics_when_a_stream_is_opened_retires_its_device() {
    let output = process("stream");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("joined: true"), "{output:?}");
}
