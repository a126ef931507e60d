//! Memory of an NVIDIA GPU, exported as a dma-buf: the few calls of the CUDA driver that this takes.
//!
//! Owns: finding the driver's library when it is asked for, never before, and one allocation of it. Never: touches that memory with the
//! processor, which need not reach it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use libloading::os::unix::Library as Object;

/// The driver's own name of its library.
const LIBRARY: &str = "libcuda.so.1";
/// Allocations are multiples of this, so that they begin and end at a page whatever their size.
const GRAIN: usize = 2 << 20;
const PAGE: u64 = 4096;

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
const DMA_BUF_SUPPORTED: c_int = 124;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;

/// Why there is no memory of a GPU.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No driver.
    #[error(
        "there is no CUDA driver on this machine ({LIBRARY}: {0}): install NVIDIA's driver, or use --memory heap or shared"
    )]
    Absent(libloading::Error),
    /// A driver that is too old.
    #[error("the CUDA driver lacks {0}: it has to be one of CUDA 11.7 or later")]
    Symbol(&'static str),
    /// A number that no GPU has.
    #[error("there is no GPU {asked}: the driver has {count}, counted from 0")]
    NoDevice {
        /// Its number.
        asked: u32,
        /// GPUs that there are.
        count: c_int,
    },
    /// The GPU, or its driver.
    #[error("GPU {0} cannot export memory as a dma-buf: that takes a Turing or later with the open kernel modules")]
    NoDmaBuf(u32),
    /// Against the driver's promise.
    #[error("the CUDA driver gave memory at {0:#x}, which is not the beginning of a page and cannot be exported")]
    NotAPage(u64),
    /// A call that failed.
    #[error("{call} of GPU {device} failed: {reason} (CUresult {code})")]
    Call {
        /// The call.
        call: &'static str,
        /// The GPU.
        device: u32,
        /// What the driver says of it.
        reason: String,
        /// The result.
        code: c_int,
    },
}

type Context = *mut c_void;

macro_rules! functions {
    ($($field:ident: $name:literal as fn($($type:ty),*);)*) => {
        /// The functions of the driver that are called.
        struct Driver {
            $($field: unsafe extern "C" fn($($type),*) -> c_int,)*
            // The functions above point into it.
            _object: Object,
        }

        impl Driver {
            fn load() -> Result<Driver, CudaError> {
                // SAFETY: the driver's library, which any program that uses the GPU loads.
                let object = unsafe { Object::new(LIBRARY) }.map_err(CudaError::Absent)?;
                Ok(Driver {
                    // SAFETY: the symbol is a function of the CUDA driver API with this very signature.
                    $($field: *unsafe { object.get($name.as_bytes()) }.map_err(|_| CudaError::Symbol($name))?,)*
                    _object: object,
                })
            }
        }
    };
}

functions! {
    init: "cuInit" as fn(c_uint);
    error_string: "cuGetErrorString" as fn(c_int, *mut *const c_char);
    device_count: "cuDeviceGetCount" as fn(*mut c_int);
    device_get: "cuDeviceGet" as fn(*mut c_int, c_int);
    device_attribute: "cuDeviceGetAttribute" as fn(*mut c_int, c_int, c_int);
    context_retain: "cuDevicePrimaryCtxRetain" as fn(*mut Context, c_int);
    context_release: "cuDevicePrimaryCtxRelease_v2" as fn(c_int);
    context_set: "cuCtxSetCurrent" as fn(Context);
    allocate: "cuMemAlloc_v2" as fn(*mut u64, usize);
    free: "cuMemFree_v2" as fn(u64);
    copy_in: "cuMemcpyHtoD_v2" as fn(u64, *const c_void, usize);
    export: "cuMemGetHandleForAddressRange" as fn(*mut c_void, u64, usize, c_int, u64);
}

/// A GPU that is in use.
struct Gpu {
    driver: Driver,
    number: u32,
    handle: c_int,
}

impl Gpu {
    /// The GPU of this number, current for this thread.
    fn open(number: u32) -> Result<Gpu, CudaError> {
        let driver = Driver::load()?;
        let mut gpu = Gpu { driver, number, handle: -1 };
        let (mut count, mut supported) = (0, 0);
        // SAFETY: everything that is written to has room, and the order of the calls is the driver's.
        unsafe {
            gpu.check("cuInit", (gpu.driver.init)(0))?;
            gpu.check("cuDeviceGetCount", (gpu.driver.device_count)(&mut count))?;
            let asked = c_int::try_from(number).unwrap_or(c_int::MAX);
            if asked >= count {
                return Err(CudaError::NoDevice { asked: number, count });
            }
            let mut handle = 0;
            gpu.check("cuDeviceGet", (gpu.driver.device_get)(&mut handle, asked))?;
            gpu.check("cuDeviceGetAttribute", (gpu.driver.device_attribute)(&mut supported, DMA_BUF_SUPPORTED, handle))?;
            if supported == 0 {
                return Err(CudaError::NoDmaBuf(number));
            }
            let mut context = std::ptr::null_mut();
            gpu.check("cuDevicePrimaryCtxRetain", (gpu.driver.context_retain)(&mut context, handle))?;
            // From here on it is to be released.
            gpu.handle = handle;
            gpu.check("cuCtxSetCurrent", (gpu.driver.context_set)(context))?;
        }
        Ok(gpu)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the driver sets the pointer to a text of its own, or leaves it.
        let reason = unsafe {
            (self.driver.error_string)(code, &mut text);
            if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        Err(CudaError::Call { call, device: self.number, reason, code })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.handle >= 0 {
            // SAFETY: it was retained once.
            unsafe { (self.driver.context_release)(self.handle) };
        }
    }
}

/// An allocation, and the dma-buf by which others reach it.
pub struct Memory {
    gpu: Gpu,
    address: u64,
    // Closed before the memory is freed.
    buffer: Option<OwnedFd>,
}

impl Memory {
    /// Allocates bytes on a GPU, as many as `content` has at least, and fills them with it.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(gpu: u32, content: &[u8]) -> Result<Memory, CudaError> {
        let gpu = Gpu::open(gpu)?;
        let size = content.len().next_multiple_of(GRAIN);
        let mut address = 0;
        // SAFETY: the result has room.
        gpu.check("cuMemAlloc", unsafe { (gpu.driver.allocate)(&mut address, size) })?;
        // From here on it is to be freed.
        let mut memory = Memory { gpu, address, buffer: None };
        let gpu = &memory.gpu;
        if !address.is_multiple_of(PAGE) {
            return Err(CudaError::NotAPage(address));
        }
        let mut fd: c_int = -1;
        // SAFETY: `content` is readable, and the allocation at least as long; a handle of this kind is a descriptor, which has room.
        unsafe {
            gpu.check("cuMemcpyHtoD", (gpu.driver.copy_in)(address, content.as_ptr().cast(), content.len()))?;
            let exported = (gpu.driver.export)((&raw mut fd).cast(), address, size, DMA_BUF_FD, 0);
            gpu.check("cuMemGetHandleForAddressRange", exported)?;
        }
        // SAFETY: new and ours.
        memory.buffer = Some(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(memory)
    }

    /// The dma-buf: its first byte is that of the allocation.
    pub fn buffer(&self) -> BorrowedFd<'_> {
        self.buffer.as_ref().expect("exported when it was made").as_fd()
    }

    /// First byte, as the GPU names it.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.buffer = None;
        // SAFETY: allocated once, and its registration has ended before.
        unsafe { (self.gpu.driver.free)(self.address) };
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({:#x} of GPU {})", self.address, self.gpu.number)
    }
}
