//! One job on one stream: where its memory lies, which work is queued, and what comes back.
#![allow(unsafe_code)]

use super::{Addresses, Buffer, Fault, NoMemory, Operation, Pool, Stream};

/// Where a job's input is.
#[derive(Debug)]
pub(crate) enum Input {
    /// In a buffer of the host.
    Host(Buffer),
    /// Already on the device, in memory that this crate does not own: read in place, after the work queued on `stream`.
    Device { address: u64, stream: Option<u64> },
}

/// Why a flight could not begin. It returns the input.
#[derive(Debug)]
pub(crate) enum Refusal {
    Fault(Fault),
    Host(NoMemory),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal::Fault(fault)
    }
}

/// A job queued on a stream. Its buffers stay here until the stream no longer uses them.
#[derive(Debug)]
pub(crate) struct Flight {
    pub input: Input,
    pub output: Buffer,
    /// The stream uploads it, so it must live as long as the flight.
    _tables: Buffer,
}

const ALIGN: u64 = 256;
const _: () = assert!(ALIGN.is_power_of_two() && ALIGN.is_multiple_of(16));

impl Flight {
    /// Queues everything the job needs. If the stream fails on the way, it must not be used again, and it may still
    /// read the returned input.
    pub fn start(
        stream: &mut dyn Stream,
        pool: &Pool,
        operation: &dyn Operation,
        input: Input,
    ) -> Result<Flight, (Refusal, Input)> {
        let bytes = operation.tables();
        let buffers = pool.take(bytes.len()).and_then(|t| Ok((t, pool.take(operation.output_bytes())?)));
        let (mut tables, mut output) = match buffers {
            Ok(buffers) => buffers,
            Err(no_memory) => return Err((Refusal::Host(no_memory), input)),
        };
        tables.copy_from_slice(&bytes);
        assert_eq!(output.len(), operation.output_bytes(), "room for the result of {}", operation.primitive());
        match queue(stream, operation, &input, &tables, &mut output) {
            Ok(()) => Ok(Flight { input, output, _tables: tables }),
            Err(fault) => {
                if !matches!(fault, Fault::NoMemory { .. }) {
                    // The device may still use them, so they are never used again and never freed.
                    std::mem::forget((tables, output));
                }
                Err((fault.into(), input))
            }
        }
    }

    /// Gives up on the stream. The input comes back, because the device at worst still reads it. Buffers that the
    /// device might write to are leaked.
    pub fn abandon(self) -> Input {
        std::mem::forget((self.output, self._tables));
        self.input
    }
}

fn queue(
    stream: &mut dyn Stream,
    operation: &dyn Operation,
    input: &Input,
    tables: &[u8],
    output: &mut Buffer,
) -> Result<(), Fault> {
    match input {
        Input::Host(buffer) => assert_eq!(buffer.len(), operation.input_bytes(), "input of {}", operation.primitive()),
        Input::Device { address, .. } => assert!(address.is_multiple_of(16), "input at {address:#x}"),
    }
    let place = |at: &mut u64, bytes: usize| {
        let start = *at;
        // Kernels read whole 16-byte blocks.
        *at = (start + bytes as u64 + 16).next_multiple_of(ALIGN);
        start
    };
    let mut end = 0;
    let tables_at = place(&mut end, tables.len());
    let input_at = match input {
        Input::Host(buffer) => place(&mut end, buffer.len()),
        Input::Device { .. } => 0,
    };
    let sizes = operation.sizes();
    let result_bytes = sizes.output + sizes.scratch;
    let result_at = place(&mut end, result_bytes);
    assert!(sizes.cleared <= result_bytes, "{} bytes cleared of {result_bytes}", sizes.cleared);
    let base = stream.reserve(end as usize)?;
    assert!(base.is_multiple_of(ALIGN), "device memory at {base:#x}");
    let mut at = Addresses { tables: base + tables_at, input: base + input_at, result: base + result_at };
    if let Input::Device { address, .. } = input {
        at.input = *address;
    }
    // Before anything is queued: if this panics, no device uses the buffers.
    let launches = operation.launches(&at);
    // SAFETY: all addresses lie in the reservation, with the lengths it was made for, and by the contract of `Operation`
    // its kernels touch nothing else; the caller keeps `tables`, the
    // input and `output` until the stream is done, and vouches for memory that this crate does not own.
    unsafe {
        match input {
            Input::Host(buffer) if !buffer.is_empty() => stream.upload(at.input, buffer)?,
            Input::Device { stream: Some(theirs), .. } => stream.wait_for(*theirs)?,
            _ => {}
        }
        if !tables.is_empty() {
            stream.upload(at.tables, tables)?;
        }
        if sizes.cleared > 0 {
            stream.clear(at.result, sizes.cleared)?;
        }
        for launch in &launches {
            stream.launch(launch)?;
        }
        if !output.is_empty() {
            stream.download(output.as_mut_ptr(), at.result, output.len())?;
        }
    }
    Ok(())
}
