//! [`Bytes`] with AVX2 and AVX-512.
#![allow(unsafe_code)]

use super::Bytes;
use std::arch::x86_64::*;

/// 32 bytes.
#[derive(Clone, Copy)]
pub struct Avx2(pub __m256i);

// SAFETY: every method uses AVX2 alone and touches only the bytes that its contract names.
unsafe impl Bytes for Avx2 {
    const LEN: usize = 32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: AVX2, by the contract.
        Avx2(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 32 readable bytes, by the contract.
        Avx2(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 32 writable bytes, by the contract.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        let mut whole = [0u8; 32];
        // SAFETY: len < 32 readable bytes, by the contract.
        unsafe {
            std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), len);
            Self::load(whole.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        let mut whole = [0u8; 32];
        // SAFETY: len < 32 writable bytes, by the contract.
        unsafe {
            self.store(whole.as_mut_ptr());
            std::ptr::copy_nonoverlapping(whole.as_ptr(), to, len);
        }
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: every x86-64 CPU has SSE; a prefetch of an address that cannot be read does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: AVX2, by the contract.
        Avx2(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
}

/// 64 bytes. Needs AVX-512F and BW.
#[derive(Clone, Copy)]
pub struct Avx512(pub __m512i);

// SAFETY: every method uses AVX-512F and BW alone and touches only the bytes that its contract names.
unsafe impl Bytes for Avx512 {
    const LEN: usize = 64;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 64 readable bytes, by the contract.
        Avx512(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 writable bytes, by the contract.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        // SAFETY: len < 64 readable bytes, by the contract; masked-out bytes are not touched.
        Avx512(unsafe { _mm512_maskz_loadu_epi8((1 << len) - 1, from.cast()) })
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: len < 64 writable bytes, by the contract; masked-out bytes are not touched.
        unsafe { _mm512_mask_storeu_epi8(to.cast(), (1 << len) - 1, self.0) }
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: every x86-64 CPU has SSE; a prefetch of an address that cannot be read does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: AVX-512F, by the contract.
        Avx512(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: AVX-512F, by the contract. 0x96 is the truth table of a xor b xor c.
        Avx512(unsafe { _mm512_ternarylogic_epi64::<0x96>(self.0, a.0, b.0) })
    }
}
