//! Copies payload with a vector loop of our own.
//!
//! The C library's copy, and so that of `core`, uses a string instruction between 2 KiB and 1 MiB that falls to a tenth of its speed
//! when the target's page offset is just ahead of the source's.

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges are valid and do not overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the instructions; the ranges are the caller's.
            unsafe { copy_avx2(from, to, len) };
        } else {
            // SAFETY: the ranges are the caller's.
            unsafe { copy_sse2(from, to, len) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the ranges are the caller's.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, len)
    };
}

/// # Safety
/// As [`copy`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(from: *const u8, to: *mut u8, len: usize) {
    use core::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    let mut at = 0;
    while len - at >= 128 {
        // SAFETY: 128 bytes are left on both sides; unaligned access is allowed.
        unsafe {
            let (source, target) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let words = [0, 1, 2, 3].map(|n| _mm256_loadu_si256(source.add(n)));
            for (n, word) in words.into_iter().enumerate() {
                _mm256_storeu_si256(target.add(n), word);
            }
        }
        at += 128;
    }
    // SAFETY: the rest of the caller's ranges.
    unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), len - at) };
}

/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_sse2(from: *const u8, to: *mut u8, len: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};
    let mut at = 0;
    while len - at >= 64 {
        // SAFETY: 64 bytes are left on both sides; unaligned access is allowed.
        unsafe {
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let words = [0, 1, 2, 3].map(|n| _mm_loadu_si128(source.add(n)));
            for (n, word) in words.into_iter().enumerate() {
                _mm_storeu_si128(target.add(n), word);
            }
        }
        at += 64;
    }
    // SAFETY: the rest of the caller's ranges.
    unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), len - at) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_and_offsets_copy_exactly() {
        let source: Vec<u8> = (0..12_000u32).map(|n| (n * 7 % 251) as u8).collect();
        for len in [0, 1, 63, 64, 65, 127, 128, 129, 4095, 4096, 5000] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (17, 48), (31, 0)] {
                for vector in [copy, copy_sse2] {
                    let mut target = vec![0xEE; 6000];
                    // SAFETY: both vectors are longer than offset and length together.
                    unsafe { vector(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                    assert_eq!(&target[to..to + len], &source[from..from + len]);
                    assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xEE));
                }
            }
        }
    }
}
