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
