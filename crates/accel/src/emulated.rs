//! The emulated device: the kernels' sources, compiled for the host against the shim in `kernels/host/`, with a fiber
//! per thread. It lets every test run execute the GPU's code. It is slow, and never measured.
//!
//! It is stricter than hardware. Work queued on a stream runs only when a caller asks whether it is done, so a result
//! that is read too early is wrong. Fresh memory is filled with a pattern, and a write beyond its end is a fault.
#![allow(unsafe_code)]

use crate::kernels::{Kernel, Launch};
use crate::runtime::{Backend, Buffer, Fault, Pageable, Pool, Stream};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// Default memory of a device.
const MEMORY_BYTES: usize = 1 << 30;
/// Bytes behind a reservation that must stay unwritten.
const GUARD_BYTES: usize = 256;
const PATTERN: u8 = 0xa5;

#[repr(C)]
struct Emulator {
    _opaque: [u8; 0],
}

// Defined in kernels/host/emulate.c.
unsafe extern "C" {
    fn tessera_accel_kernel(name: *const c_char) -> c_int;
    fn tessera_accel_threads(kernel: c_int) -> c_uint;
    fn tessera_accel_emulator() -> *mut Emulator;
    fn tessera_accel_emulator_free(emulator: *mut Emulator);
    fn tessera_accel_launch(
        emulator: *mut Emulator,
        kernel: c_int,
        grid_x: c_uint,
        grid_y: c_uint,
        argument: *const c_void,
        argument_bytes: usize,
    ) -> c_int;
}

/// An emulated device.
#[derive(Debug, Clone)]
pub struct Emulated {
    name: String,
    memory_bytes: usize,
}

impl Emulated {
    /// Device `emulated:NUMBER`.
    pub fn new(number: usize) -> Emulated {
        Emulated { name: format!("emulated:{number}"), memory_bytes: MEMORY_BYTES }
    }

    /// Sets the amount of memory.
    pub fn with_memory(self, memory_bytes: usize) -> Emulated {
        Emulated { memory_bytes, ..self }
    }
}

impl Backend for Emulated {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        "the kernels on the host, for tests".into()
    }

    fn is_for_tests(&self) -> bool {
        true
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes as u64
    }

    fn calibration_bytes(&self) -> usize {
        16 * 1024
    }

    fn stream(&self) -> Result<Box<dyn Stream>, Fault> {
        if let Some(missing) = Kernel::ALL.iter().find(|k| number_of(**k).is_none()) {
            return Err(self.fault("open", &format!("kernel {} is not compiled in", missing.name())));
        }
        // SAFETY: no arguments; null is checked.
        let emulator = NonNull::new(unsafe { tessera_accel_emulator() });
        let emulator = emulator.ok_or_else(|| self.fault("open", "no memory for fibers"))?;
        Ok(Box::new(EmulatedStream { device: self.clone(), emulator, arena: None, queued: Vec::new() }))
    }
}

impl Emulated {
    fn fault(&self, what: &str, why: &str) -> Fault {
        Fault::Failed { device: self.name.clone(), what: what.into(), why: why.into() }
    }
}

fn number_of(kernel: Kernel) -> Option<c_int> {
    let name = CString::new(kernel.name()).ok()?;
    // SAFETY: the name ends with a zero and is not kept.
    let number = unsafe { tessera_accel_kernel(name.as_ptr()) };
    // SAFETY: every number is a valid argument.
    let threads = unsafe { tessera_accel_threads(number) };
    (number >= 0 && threads == kernel.threads()).then_some(number)
}

/// Work that waits on a stream. Addresses are the host's.
enum Step {
    Copy { to: *mut u8, from: *const u8, bytes: usize },
    Clear { at: *mut u8, bytes: usize },
    Launch(Launch),
}

/// Memory of the device: a reservation, and the guard behind it.
struct Arena {
    buffer: Buffer,
    bytes: usize,
}

struct EmulatedStream {
    device: Emulated,
    emulator: NonNull<Emulator>,
    arena: Option<Arena>,
    queued: Vec<Step>,
}

impl EmulatedStream {
    fn carry_out(&mut self, step: Step) -> Result<(), Fault> {
        match step {
            // SAFETY: the caller that queued it vouched for both sides until is_done.
            Step::Copy { to, from, bytes } => unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) },
            // SAFETY: as above.
            Step::Clear { at, bytes } => unsafe { at.write_bytes(0, bytes) },
            Step::Launch(launch) => self.run(&launch)?,
        }
        Ok(())
    }

    fn run(&mut self, launch: &Launch) -> Result<(), Fault> {
        let number = number_of(launch.kernel()).unwrap_or(-1);
        let (argument, bytes) = (launch.argument_words(), launch.kernel().argument_bytes());
        let [x, y] = launch.grid();
        // SAFETY: the emulator belongs to this stream; the callee checks the argument's size; the caller that queued
        // the kernel vouched for the addresses in it.
        let code =
            unsafe { tessera_accel_launch(self.emulator.as_ptr(), number, x, y, argument.as_ptr().cast(), bytes) };
        let why = match code {
            0 => return Ok(()),
            1 => "no such kernel",
            2 => "the argument has another size than the kernel's struct",
            3 => "threads that should meet at a barrier or a shuffle never do",
            4 => "a kernel listed without fibers meets a barrier or a shuffle",
            5 => "a fiber's stack overflowed",
            _ => "unknown failure",
        };
        Err(self.device.fault(launch.kernel().name(), why))
    }
}

impl Stream for EmulatedStream {
    fn reserve(&mut self, bytes: usize) -> Result<u64, Fault> {
        if self.arena.as_ref().is_none_or(|arena| arena.bytes < bytes) {
            self.arena = None;
            let no_memory = || Fault::NoMemory { device: self.device.name.clone(), bytes };
            if bytes > self.device.memory_bytes {
                return Err(no_memory());
            }
            let pool = Pool::new(Arc::new(Pageable), 0);
            let mut buffer = pool.take(bytes.saturating_add(GUARD_BYTES)).map_err(|_| no_memory())?;
            buffer.fill(PATTERN);
            self.arena = Some(Arena { buffer, bytes });
        }
        Ok(self.arena.as_mut().map_or(0, |arena| arena.buffer.as_mut_ptr().expose_provenance() as u64))
    }

    fn release(&mut self) {
        self.arena = None;
    }

    unsafe fn wait_for(&mut self, _stream: u64) -> Result<(), Fault> {
        Ok(()) // No other library queues work on an emulated device.
    }

    unsafe fn upload(&mut self, to: u64, from: &[u8]) -> Result<(), Fault> {
        self.queued.push(Step::Copy { to: host(to), from: from.as_ptr(), bytes: from.len() });
        Ok(())
    }

    unsafe fn clear(&mut self, at: u64, bytes: usize) -> Result<(), Fault> {
        self.queued.push(Step::Clear { at: host(at), bytes });
        Ok(())
    }

    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Fault> {
        self.queued.push(Step::Launch(launch.clone()));
        Ok(())
    }

    unsafe fn download(&mut self, to: *mut u8, from: u64, bytes: usize) -> Result<(), Fault> {
        self.queued.push(Step::Copy { to, from: host(from), bytes });
        Ok(())
    }

    fn is_done(&mut self) -> Result<bool, Fault> {
        for step in std::mem::take(&mut self.queued) {
            self.carry_out(step)?;
        }
        match &self.arena {
            Some(Arena { buffer, bytes }) if buffer[*bytes..].iter().any(|b| *b != PATTERN) => {
                Err(self.device.fault("check memory", "a kernel wrote beyond its end"))
            }
            _ => Ok(true),
        }
    }
}

fn host(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl Drop for EmulatedStream {
    fn drop(&mut self) {
        // SAFETY: made by tessera_accel_emulator, and freed once.
        unsafe { tessera_accel_emulator_free(self.emulator.as_ptr()) };
    }
}
