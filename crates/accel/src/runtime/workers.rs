//! The CPU's threads: jobs that are for the CPU, and those that a device could not do.

use super::central::{By, Central, Next};
use super::flight::Input;
use super::job::{Done, JobError, Ticket};
use super::{Buffer, Pool};
use crate::isa::Isa;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The thread.
pub(crate) fn run(central: &Central, pool: &Pool, isa: Isa, name: &Arc<str>) {
    loop {
        match central.next_for_cpu() {
            Next::Job(ticket) => {
                let result = carry_out(&ticket, central, pool, isa, name);
                central.finish_running(&ticket, result, By::Cpu);
            }
            Next::Nothing => {}
            Next::Stop => return,
        }
    }
}

fn carry_out(ticket: &Ticket, central: &Central, pool: &Pool, isa: Isa, name: &Arc<str>) -> Result<Done, JobError> {
    let input = match ticket.begin() {
        None => return Err(JobError::Cancelled),
        Some(Err(why)) => return Err(why),
        Some(Ok(Input::Device { .. })) => return Err(JobError::Lost { device: central.name_of(ticket.target) }),
        Some(Ok(Input::Host(input))) => input,
    };
    let output = pool.take(ticket.operation.output_bytes())?;
    let compute = |mut output: Buffer| {
        ticket.operation.on_cpu(isa, &input, &mut output);
        output
    };
    let output = catch_unwind(AssertUnwindSafe(|| compute(output)))
        .map_err(|_| JobError::Panicked { primitive: ticket.operation.primitive() })?;
    Ok(Done { input: Some(input), output, device: name.clone() })
}
