//! The copy and atomic routines in x86-64 assembly.
//!
//! Assembly and not intrinsics for two reasons: the compiler cannot turn it into `memcpy`, and the extent of the code is known,
//! so that the fault handler can tell these accesses from any other. None of the routines touches the stack: wherever one
//! faults, going on at its exit returns to the caller.
//!
//! Shape of the copy: one unaligned store brings the destination to vector alignment, then four vectors per turn (all loads
//! before all stores, which softens false store-to-load conflicts at equal page offsets), then single vectors, then 16, 8, 4, 2
//! and 1 bytes. Stores after the first are aligned, so none crosses a cache line and they become visible in order.

use core::arch::global_asm;
use core::ops::Range;

macro_rules! copy_routine {
    ($name:literal, $vector:literal, $load:literal, $store:literal, $reg:literal, $exit:literal) => {
        global_asm!(
            ".p2align 6",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            "cmp rdx, {vector}",
            "jb 20f",
            // Head: one unaligned vector, then step to the next multiple of the vector's size.
            concat!($load, " ", $reg, "0, [rsi]"),
            concat!($load, " [rdi], ", $reg, "0"),
            "mov rax, rdi",
            "and rax, {vector} - 1",
            "sub rax, {vector}",
            "sub rdi, rax",
            "sub rsi, rax",
            "add rdx, rax",
            "sub rdx, 4 * {vector}",
            "jb 32f",
            ".p2align 5",
            "31:",
            concat!($load, " ", $reg, "0, [rsi]"),
            concat!($load, " ", $reg, "1, [rsi + {vector}]"),
            concat!($load, " ", $reg, "2, [rsi + 2 * {vector}]"),
            concat!($load, " ", $reg, "3, [rsi + 3 * {vector}]"),
            concat!($store, " [rdi], ", $reg, "0"),
            concat!($store, " [rdi + {vector}], ", $reg, "1"),
            concat!($store, " [rdi + 2 * {vector}], ", $reg, "2"),
            concat!($store, " [rdi + 3 * {vector}], ", $reg, "3"),
            "add rsi, 4 * {vector}",
            "add rdi, 4 * {vector}",
            "sub rdx, 4 * {vector}",
            "jae 31b",
            "32:",
            "add rdx, 3 * {vector}",
            "jnc 34f",
            "33:",
            concat!($load, " ", $reg, "0, [rsi]"),
            concat!($store, " [rdi], ", $reg, "0"),
            "add rsi, {vector}",
            "add rdi, {vector}",
            "sub rdx, {vector}",
            "jae 33b",
            "34:",
            "add rdx, {vector}",
            // Fewer bytes than a vector are left.
            "20:",
            "test dl, 16",
            "jz 21f",
            concat!($load, " xmm0, [rsi]"),
            concat!($load, " [rdi], xmm0"),
            "add rsi, 16",
            "add rdi, 16",
            "21:",
            "test dl, 8",
            "jz 22f",
            "mov rax, [rsi]",
            "mov [rdi], rax",
            "add rsi, 8",
            "add rdi, 8",
            "22:",
            "test dl, 4",
            "jz 23f",
            "mov eax, [rsi]",
            "mov [rdi], eax",
            "add rsi, 4",
            "add rdi, 4",
            "23:",
            "test dl, 2",
            "jz 24f",
            "movzx eax, word ptr [rsi]",
            "mov [rdi], ax",
            "add rsi, 2",
            "add rdi, 2",
            "24:",
            "test dl, 1",
            "jz 25f",
            "movzx eax, byte ptr [rsi]",
            "mov [rdi], al",
            "25:",
            $exit,
            "xor eax, eax",
            "ret",
            concat!($name, "_fault:"),
            $exit,
            "mov eax, 1",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            concat!(".globl ", $name, "_fault"),
            concat!(".hidden ", $name, "_fault"),
            vector = const $vector,
        );
    };
}

copy_routine!("vrdma_copy_avx2", 32, "vmovdqu", "vmovdqa", "ymm", "vzeroupper");
copy_routine!("vrdma_copy_sse2", 16, "movdqu", "movdqa", "xmm", "");

global_asm!(
    ".p2align 4",
    ".globl vrdma_copy_bytewise, vrdma_fetch_add, vrdma_compare_swap, vrdma_plain_fault",
    ".hidden vrdma_copy_bytewise, vrdma_fetch_add, vrdma_compare_swap, vrdma_plain_fault",
    "vrdma_copy_bytewise:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    // (at, addend, place for the value before)
    "vrdma_fetch_add:",
    ".cfi_startproc",
    "lock xadd [rdi], rsi",
    "mov [rdx], rsi",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    // (at, compare, swap, place for the value before)
    "vrdma_compare_swap:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "vrdma_plain_fault:",
    ".cfi_startproc",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
);

type CopyFn = unsafe extern "C" fn(*mut u8, *const u8, usize) -> u32;

unsafe extern "C" {
    fn vrdma_copy_avx2(dst: *mut u8, src: *const u8, len: usize) -> u32;
    fn vrdma_copy_avx2_fault();
    fn vrdma_copy_sse2(dst: *mut u8, src: *const u8, len: usize) -> u32;
    fn vrdma_copy_sse2_fault();
    fn vrdma_copy_bytewise(dst: *mut u8, src: *const u8, len: usize) -> u32;
    fn vrdma_fetch_add(at: *mut u64, add: u64, before: *mut u64) -> u32;
    fn vrdma_compare_swap(at: *mut u64, compare: u64, swap: u64, before: *mut u64) -> u32;
    fn vrdma_plain_fault();
}

/// Code whose faults are recovered, and where to go on after one.
pub(super) struct Recovery {
    pub(super) code: Range<usize>,
    pub(super) exit: usize,
}

/// All recoverable code. Each routine is followed directly by its exit.
pub(super) fn recoveries() -> [Recovery; 3] {
    let range =
        |start: CopyFn, exit: unsafe extern "C" fn()| Recovery { code: start as usize..exit as usize, exit: exit as usize };
    [
        range(vrdma_copy_avx2, vrdma_copy_avx2_fault),
        range(vrdma_copy_sse2, vrdma_copy_sse2_fault),
        range(vrdma_copy_bytewise, vrdma_plain_fault),
    ]
}

/// The routines that suit this CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Routines {
    copy: CopyFn,
}

impl Routines {
    pub(super) fn detect() -> Routines {
        super::fault::install();
        let avx2 = std::arch::is_x86_feature_detected!("avx2");
        Routines { copy: if avx2 { vrdma_copy_avx2 } else { vrdma_copy_sse2 } }
    }

    /// For tests of the routine that this CPU would not choose.
    #[cfg(test)]
    pub(super) fn sse2() -> Routines {
        super::fault::install();
        Routines { copy: vrdma_copy_sse2 }
    }

    /// Returns whether a fault ended the copy.
    #[inline]
    pub(super) unsafe fn copy_disjoint(&self, dst: *mut u8, src: *const u8, len: usize) -> bool {
        // SAFETY: the caller's promise (`Copier::copy`); faults are recovered.
        unsafe { (self.copy)(dst, src, len) != 0 }
    }

    /// Returns whether a fault ended the copy.
    pub(super) unsafe fn copy_bytewise(&self, dst: *mut u8, src: *const u8, len: usize) -> bool {
        // SAFETY: as `copy_disjoint`.
        unsafe { vrdma_copy_bytewise(dst, src, len) != 0 }
    }

    pub(super) unsafe fn fetch_add(&self, at: *mut u64, add: u64) -> Option<u64> {
        let mut before = 0;
        // SAFETY: the caller's promise (`Copier::atomic`); faults are recovered; `before` is ours.
        let faulted = unsafe { vrdma_fetch_add(at, add, &raw mut before) };
        (faulted == 0).then_some(before)
    }

    pub(super) unsafe fn compare_swap(&self, at: *mut u64, compare: u64, swap: u64) -> Option<u64> {
        let mut before = 0;
        // SAFETY: as `fetch_add`.
        let faulted = unsafe { vrdma_compare_swap(at, compare, swap, &raw mut before) };
        (faulted == 0).then_some(before)
    }
}
