//! CUDA devices, through the driver library that is loaded at run time. A build needs nothing of CUDA, and on a host
//! without a driver [`devices`] returns an error.
//!
//! Kernels come from the embedded PTX, which the driver compiles for the card. Each stream has its own device memory.
//! Host buffers come from [`Pinned`] memory, so that copies overlap kernels. Source for every call: the CUDA driver
//! API's reference manual.
#![allow(unsafe_code)]

use crate::kernels::{Kernel, Launch, PTX};
use crate::panics::contain;
use crate::runtime::{Backend, Fault, HostMemory, Stream};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// Why there are no CUDA devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// No driver library.
    #[error("no CUDA driver library is installed (libcuda.so.1, nvcuda.dll); install NVIDIA's driver to use its GPUs")]
    NoDriver,
    /// The library is present and does not work.
    #[error("the CUDA driver does not work: {why}; run nvidia-smi to see its state")]
    Driver {
        /// Its error message.
        why: String,
    },
}

/// The CUDA devices of this host, in the driver's order; possibly none.
///
/// # Errors
/// There is no driver library, or it does not work.
pub fn devices() -> Result<Vec<Cuda>, Unavailable> {
    // SAFETY: looks for the library and loads it; its initialisers are the driver's.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    // cudarc panics if the driver lacks a function.
    let found = contain(|| -> Result<Vec<Cuda>, String> {
        result::init().map_err(say)?;
        let count = result::device::get_count().map_err(say)?;
        (0..count).map(|ordinal| Cuda::open(ordinal).map_err(say)).collect()
    });
    match found {
        Ok(Ok(devices)) => Ok(devices),
        Ok(Err(why)) => Err(Unavailable::Driver { why }),
        Err(_) => Err(Unavailable::Driver { why: "a function is missing from its library; it is too old".into() }),
    }
}

/// The driver's text for an error.
fn say(error: DriverError) -> String {
    let name = error.error_name().map(|n| n.to_string_lossy().into_owned());
    let text = error.error_string().map(|t| t.to_string_lossy().into_owned());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name}: {text}"),
        _ => format!("error {}", error.0 as u32),
    }
}

/// A device's primary context, which other libraries of the process share.
#[derive(Debug)]
struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: the driver's contexts may be used from any thread, which makes them current first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the context was retained and is not released before `self` is dropped.
        unsafe { result::ctx::set_current(self.handle) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `Cuda::open`. A driver that is shutting down may refuse; the context is gone then.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A CUDA device.
#[derive(Debug, Clone)]
pub struct Cuda {
    name: String,
    description: String,
    memory_bytes: u64,
    context: Arc<Context>,
}

impl Cuda {
    fn open(ordinal: i32) -> Result<Cuda, DriverError> {
        let device = result::device::get(ordinal)?;
        let description = result::device::get_name(device)?;
        // SAFETY: the device was just found.
        let memory_bytes = unsafe { result::device::total_mem(device)? } as u64;
        // SAFETY: as above; released when the context is dropped.
        let handle = unsafe { result::primary_ctx::retain(device)? };
        let context = Arc::new(Context { device, handle });
        Ok(Cuda { name: format!("cuda:{ordinal}"), description, memory_bytes, context })
    }

    /// Page-locked host memory for all CUDA devices of the process.
    pub fn pinned(&self) -> Pinned {
        Pinned { context: self.context.clone() }
    }

    fn fault(&self, what: &str, error: DriverError) -> Fault {
        Fault::Failed { device: self.name.clone(), what: what.into(), why: say(error) }
    }

    fn load_kernels(&self) -> Result<HashMap<Kernel, sys::CUfunction>, DriverError> {
        let ptx = CString::new(PTX).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_PTX))?;
        // SAFETY: the image is text that ends with a zero. The module is never unloaded, so functions stay valid.
        let module = unsafe { result::module::load_data(ptx.as_ptr().cast())? };
        let function = |kernel: Kernel| {
            let name = CString::new(kernel.name()).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND))?;
            // SAFETY: the module is loaded.
            Ok((kernel, unsafe { result::module::get_function(module, name)? }))
        };
        Kernel::ALL.iter().copied().map(function).collect()
    }
}

impl Backend for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn calibration_bytes(&self) -> usize {
        (8 << 20).min(self.memory_bytes as usize / 64)
    }

    fn stream(&self) -> Result<Box<dyn Stream>, Fault> {
        self.context.make_current().map_err(|e| self.fault("use its context", e))?;
        let kernels = self.load_kernels().map_err(|e| self.fault("load the kernels", e))?;
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|e| self.fault("make a stream", e))?;
        Ok(Box::new(CudaStream { device: self.clone(), handle, kernels, memory: None }))
    }
}

/// A stream and the device memory of its job. It stays on the thread that made it, where its context is current.
struct CudaStream {
    device: Cuda,
    handle: sys::CUstream,
    kernels: HashMap<Kernel, sys::CUfunction>,
    /// Address and bytes.
    memory: Option<(sys::CUdeviceptr, usize)>,
}

impl CudaStream {
    fn check(&self, what: &str, done: Result<(), DriverError>) -> Result<(), Fault> {
        done.map_err(|e| self.device.fault(what, e))
    }
}

impl Stream for CudaStream {
    fn reserve(&mut self, bytes: usize) -> Result<u64, Fault> {
        match self.memory {
            Some((address, room)) if room >= bytes => return Ok(address),
            _ => self.release(),
        }
        // SAFETY: the context is current; the memory is freed once, in `release`.
        match unsafe { result::malloc_sync(bytes.max(1)) } {
            Ok(address) => {
                self.memory = Some((address, bytes));
                Ok(address)
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                Err(Fault::NoMemory { device: self.device.name.clone(), bytes })
            }
            Err(error) => Err(self.device.fault("reserve memory", error)),
        }
    }

    fn release(&mut self) {
        if let Some((address, _)) = self.memory.take() {
            // SAFETY: from malloc_sync, and forgotten here. A lost device cannot free memory, and need not.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    unsafe fn wait_for(&mut self, stream: u64) -> Result<(), Fault> {
        let theirs = std::ptr::with_exposed_provenance_mut(stream as usize);
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let event = event.map_err(|e| self.device.fault("make an event", e))?;
        let wait = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: this stream lives, and the caller vouches that the other does. An event may be destroyed once a wait
        // for it is queued: the driver keeps what it needs.
        let waited = unsafe {
            let waited = result::event::record(event, theirs)
                .and_then(|()| result::stream::wait_event(self.handle, event, wait));
            waited.and(result::event::destroy(event))
        };
        self.check("wait for another stream", waited)
    }

    unsafe fn upload(&mut self, to: u64, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: the caller vouches for both sides.
        let queued = unsafe { result::memcpy_htod_async(to, from, self.handle) };
        self.check("upload", queued)
    }

    unsafe fn clear(&mut self, at: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller vouches for the addresses.
        let queued = unsafe { result::memset_d8_async(at, 0, bytes, self.handle) };
        self.check("clear", queued)
    }

    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Fault> {
        let missing = || DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND);
        let kernel = launch.kernel();
        let function = self.kernels.get(&kernel).copied();
        let function = function.ok_or_else(|| self.device.fault(kernel.name(), missing()))?;
        // The driver copies the argument before it returns.
        let mut argument = launch.argument_words();
        let mut parameters = [argument.as_mut_ptr().cast::<c_void>()];
        let ([x, y], threads) = (launch.grid(), kernel.threads());
        // SAFETY: the argument is laid out as the kernel's struct; the caller vouches for the addresses in it.
        let queued =
            unsafe { result::launch_kernel(function, (x, y, 1), (threads, 1, 1), 0, self.handle, &mut parameters) };
        self.check(kernel.name(), queued)
    }

    unsafe fn download(&mut self, to: *mut u8, from: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller vouches for both sides.
        let queued = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.handle) };
        self.check("download", queued.result())
    }

    fn is_done(&mut self) -> Result<bool, Fault> {
        // SAFETY: the stream lives as long as `self`.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => self.check("run", other.result()).map(|()| true),
        }
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // Another context may be current on this thread.
        let _ = self.device.context.make_current();
        // SAFETY: `self` owns the stream and does not use it afterwards. Queued work is waited for first, because host
        // buffers may be freed next. A failure means that the device and its work are gone.
        unsafe {
            let _ = result::stream::synchronize(self.handle);
            let _ = result::stream::destroy(self.handle);
        }
        self.release();
    }
}

/// Page-locked host memory, which a GPU copies to and from directly.
#[derive(Debug)]
pub struct Pinned {
    context: Arc<Context>,
}

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context of the process.
const PORTABLE: u32 = 1;

// SAFETY: cuMemHostAlloc's blocks are page-aligned and have no other owner; they are zeroed before they are returned.
unsafe impl HostMemory for Pinned {
    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.context.make_current().ok()?;
        // SAFETY: the context is current.
        let memory = NonNull::new(unsafe { result::malloc_host(bytes, PORTABLE) }.ok()?.cast::<u8>())?;
        // SAFETY: `bytes` were just allocated.
        unsafe { memory.as_ptr().write_bytes(0, bytes) };
        Some(memory)
    }

    unsafe fn give(&self, memory: NonNull<u8>, _bytes: usize) {
        if self.context.make_current().is_ok() {
            // SAFETY: the caller vouches that it is from malloc_host. A driver that is shutting down has already freed
            // it.
            let _ = unsafe { result::free_host(memory.as_ptr().cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On any host the query is safe: without a driver it returns an error and never panics (P14).
    #[test]
    fn a_host_without_a_driver_says_so() {
        match devices() {
            Ok(found) => found.iter().for_each(|d| assert!(d.name().starts_with("cuda:") && d.memory_bytes() > 0)),
            Err(Unavailable::NoDriver) => println!("skipped: no CUDA driver here"),
            Err(Unavailable::Driver { why }) => assert!(!why.is_empty()),
        }
    }
}
