//! The CPU's threads: they run jobs for the CPU and jobs that a device failed to do.

use super::central::Central;
use super::flight::Input;
use super::job::{JobError, JobOutput, Ticket};
use super::{Buffer, NoMemory, NoThread, Pool};
use crate::isa::Isa;
use crate::panics::contain;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Starts up to `wanted` threads, at least one: fewer where the system gives no more.
pub(crate) fn start(
    wanted: usize,
    mut spawn: impl FnMut(usize) -> io::Result<JoinHandle<()>>,
) -> Result<Vec<JoinHandle<()>>, NoThread> {
    let mut started = Vec::new();
    for number in 0..wanted.max(1) {
        match spawn(number) {
            Ok(thread) => started.push(thread),
            Err(e) if started.is_empty() => return Err(NoThread { why: e.to_string() }),
            Err(_) => break,
        }
    }
    Ok(started)
}

/// The thread's main function.
pub(crate) fn run(central: &Central, pool: &Pool, isa: Isa, name: &Arc<str>) {
    while let Some((ticket, input)) = central.next_for_cpu() {
        let result = carry_out(&ticket, input, central, pool, isa, name);
        central.finish(ticket, result, None);
    }
}

fn carry_out(
    ticket: &Ticket,
    input: Input,
    central: &Central,
    pool: &Pool,
    isa: Isa,
    name: &Arc<str>,
) -> Result<JobOutput, JobError> {
    let Input::Host(input) = input else {
        return Err(JobError::Lost { device: central.name_of(ticket.target) });
    };
    let output = pool.take(ticket.operation.output_bytes())?;
    let compute = |mut output: Buffer| {
        ticket.operation.on_cpu(isa, &input, &mut output)?;
        assert!(output.len() >= ticket.operation.output_bytes(), "the CPU may only enlarge its output");
        Ok::<Buffer, NoMemory>(output)
    };
    let output =
        contain(|| compute(output)).map_err(|_| JobError::Panicked { primitive: ticket.operation.primitive() })??;
    Ok(JobOutput { input: Some(input), output, device: name.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system that starts two threads and no more, or none.
    #[test]
    fn fewer_threads_than_wanted_will_do_and_none_is_an_error() {
        let up_to = |limit| {
            move |number| match number < limit {
                true => std::thread::Builder::new().spawn(|| ()),
                false => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            }
        };
        for (wanted, limit, expected) in [(4, 2, 2), (2, 9, 2), (0, 9, 1)] {
            let started = start(wanted, up_to(limit)).unwrap();
            assert_eq!(started.len(), expected);
            started.into_iter().for_each(|thread| thread.join().unwrap());
        }
        let refused = start(4, up_to(0)).unwrap_err().to_string();
        assert!(refused.contains("no thread can be started"), "{refused}");
    }
}
