//! The libraries for comparison, loaded at run time so that this crate builds without them: Debian's `libisal2` and
//! `libjerasure2`. Each handle is `None` if the library is not installed.

use libloading::Library;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// ISA-L's erasure code functions.
pub struct Isal {
    library: Library,
}

/// Tables of one ISA-L matrix, ready to multiply.
pub struct IsalCode {
    k: usize,
    tables: Vec<u8>,
}

type Fill = unsafe extern "C" fn(*mut u8, c_int, c_int);

impl Isal {
    /// Loads the installed library.
    pub fn load() -> Option<Isal> {
        // SAFETY: loading runs the library's initialisers, which the system's package vouches for.
        let library = unsafe { Library::new("libisal.so.2") }.ok()?;
        Some(Isal { library })
    }

    /// (k + m) × k matrix by `gf_gen_rs_matrix` (`vandermonde`) or `gf_gen_cauchy1_matrix` (`cauchy1`), without
    /// the identity on top.
    pub fn parity_rows(&self, name: &str, k: usize, m: usize) -> Vec<u8> {
        let symbol: &[u8] = if name == "cauchy1" { b"gf_gen_cauchy1_matrix\0" } else { b"gf_gen_rs_matrix\0" };
        let mut matrix = vec![0u8; (k + m) * k];
        // SAFETY: the functions have this signature (erasure_code.h) and fill (k + m)·k bytes.
        unsafe {
            let fill: libloading::Symbol<'_, Fill> = self.library.get(symbol).expect("erasure_code.h declares it");
            fill(matrix.as_mut_ptr(), (k + m) as c_int, k as c_int);
        }
        matrix.split_off(k * k)
    }

    /// The tables that `ec_encode_data` needs for `rows`, a whole number of rows of k coefficients.
    pub fn code(&self, k: usize, rows: &[u8]) -> IsalCode {
        let mut tables = vec![0u8; 32 * rows.len()];
        let mut rows = rows.to_vec();
        // SAFETY: signature of erasure_code.h; tables take 32 bytes a coefficient.
        unsafe {
            let init: libloading::Symbol<'_, unsafe extern "C" fn(c_int, c_int, *mut u8, *mut u8)> =
                self.library.get(b"ec_init_tables\0").expect("erasure_code.h declares it");
            init(k as c_int, (rows.len() / k) as c_int, rows.as_mut_ptr(), tables.as_mut_ptr());
        }
        IsalCode { k, tables }
    }

    /// One product: `out[i]` = row i times `data`.
    pub fn encode(&self, code: &IsalCode, data: &[&[u8]], out: &mut [Vec<u8>]) {
        let len = data[0].len();
        assert!(data.len() == code.k && data.iter().all(|d| d.len() == len) && out.iter().all(|o| o.len() == len));
        assert_eq!(code.tables.len(), 32 * code.k * out.len());
        let mut sources: Vec<*mut u8> = data.iter().map(|d| d.as_ptr().cast_mut()).collect();
        let mut targets: Vec<*mut u8> = out.iter_mut().map(|o| o.as_mut_ptr()).collect();
        type Encode = unsafe extern "C" fn(c_int, c_int, c_int, *const u8, *mut *mut u8, *mut *mut u8);
        // SAFETY: signature of erasure_code.h; all lengths were checked; sources are only read.
        unsafe {
            let encode: libloading::Symbol<'_, Encode> =
                self.library.get(b"ec_encode_data\0").expect("erasure_code.h declares it");
            encode(
                len as c_int,
                code.k as c_int,
                out.len() as c_int,
                code.tables.as_ptr(),
                sources.as_mut_ptr(),
                targets.as_mut_ptr(),
            );
        }
    }
}

/// Jerasure 2, with gf-complete's default fields. It keeps them in process-wide variables without a lock, so only one
/// handle exists at a time.
pub struct Jerasure {
    library: Library,
    _alone: MutexGuard<'static, ()>,
}

/// A bit-matrix code of Jerasure with its encoding schedule. Both leak: a benchmark makes few.
pub struct JerasureCode {
    /// Data devices.
    pub k: usize,
    /// Coding devices.
    pub m: usize,
    /// Bits in a word.
    pub w: usize,
    bits: *mut c_int,
    schedule: *mut *mut c_int,
}

impl JerasureCode {
    /// The bit-matrix, m·w rows of k·w columns.
    pub fn bit_matrix(&self) -> Vec<u8> {
        let len = self.k * self.m * self.w * self.w;
        // SAFETY: Jerasure allocated that many entries.
        unsafe { std::slice::from_raw_parts(self.bits, len) }.iter().map(|bit| *bit as u8).collect()
    }
}

type ThreeInts = unsafe extern "C" fn(c_int, c_int, c_int) -> *mut c_int;

impl Jerasure {
    /// Loads the installed library. It waits until no other handle exists, so a thread must not call it twice.
    pub fn load() -> Option<Jerasure> {
        static IN_USE: Mutex<()> = Mutex::new(());
        let _alone = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: loading runs the library's initialisers, which the system's package vouches for.
        let library = unsafe { Library::new("libJerasure.so.2") }.ok()?;
        Some(Jerasure { library, _alone })
    }

    fn matrix(&self, name: &str, k: usize, m: usize, w: usize) -> *mut c_int {
        let symbol: &[u8] = match name {
            "reed_sol_van" => b"reed_sol_vandermonde_coding_matrix\0",
            "cauchy_orig" => b"cauchy_original_coding_matrix\0",
            _ => b"cauchy_good_general_coding_matrix\0",
        };
        // SAFETY: all three take (k, m, w) and return k·m ints, or null if there is no such matrix.
        unsafe {
            let make: libloading::Symbol<'_, ThreeInts> = self.library.get(symbol).expect("Jerasure exports it");
            let matrix = make(k as c_int, m as c_int, w as c_int);
            assert!(!matrix.is_null(), "{name} {k} {m} {w}");
            matrix
        }
    }

    /// The m × k coefficients of a matrix by name, over GF(2^w).
    pub fn parity_rows(&self, name: &str, k: usize, m: usize, w: usize) -> Vec<u32> {
        let matrix = self.matrix(name, k, m, w);
        // SAFETY: the matrix has k·m entries.
        unsafe { std::slice::from_raw_parts(matrix, k * m) }.iter().map(|x| *x as u32).collect()
    }

    /// Parity by `jerasure_matrix_encode` over GF(2^8).
    pub fn matrix_encode(&self, name: &str, k: usize, m: usize, data: &[&[u8]]) -> Vec<Vec<u8>> {
        let matrix = self.matrix(name, k, m, 8);
        let len = data[0].len();
        let mut parity = vec![vec![0u8; len]; m];
        let mut sources: Vec<*mut u8> = data.iter().map(|d| d.as_ptr().cast_mut()).collect();
        let mut targets: Vec<*mut u8> = parity.iter_mut().map(|p| p.as_mut_ptr()).collect();
        type Encode = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_int, *mut *mut u8, *mut *mut u8, c_int);
        // SAFETY: signature of jerasure.h; all devices have `len` bytes.
        unsafe {
            let encode: libloading::Symbol<'_, Encode> =
                self.library.get(b"jerasure_matrix_encode\0").expect("Jerasure exports it");
            encode(k as c_int, m as c_int, 8, matrix, sources.as_mut_ptr(), targets.as_mut_ptr(), len as c_int);
        }
        parity
    }

    /// A bit-matrix code by name: `liberation`, `blaum_roth` (m = 2), `cauchy_orig`, `cauchy_good`.
    pub fn code(&self, name: &str, k: usize, m: usize, w: usize) -> JerasureCode {
        type TwoInts = unsafe extern "C" fn(c_int, c_int) -> *mut c_int;
        type FromMatrix = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_int) -> *mut c_int;
        type Schedule = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_int) -> *mut *mut c_int;
        let two = |symbol: &[u8]| {
            // SAFETY: liberation.h: (k, w) to a bit-matrix, null if there is none.
            unsafe {
                let make: libloading::Symbol<'_, TwoInts> = self.library.get(symbol).expect("Jerasure exports it");
                make(k as c_int, w as c_int)
            }
        };
        let bits = match name {
            "liberation" => two(b"liberation_coding_bitmatrix\0"),
            "blaum_roth" => two(b"blaum_roth_coding_bitmatrix\0"),
            _ => {
                let matrix = self.matrix(name, k, m, w);
                // SAFETY: jerasure.h: k·m entries in, k·m·w·w out.
                unsafe {
                    let expand: libloading::Symbol<'_, FromMatrix> =
                        self.library.get(b"jerasure_matrix_to_bitmatrix\0").expect("Jerasure exports it");
                    expand(k as c_int, m as c_int, w as c_int, matrix)
                }
            }
        };
        assert!(!bits.is_null(), "{name} {k} {m} {w}");
        // SAFETY: jerasure.h: the matrix has k·m·w·w entries.
        let schedule = unsafe {
            let make: libloading::Symbol<'_, Schedule> =
                self.library.get(b"jerasure_smart_bitmatrix_to_schedule\0").expect("Jerasure exports it");
            make(k as c_int, m as c_int, w as c_int, bits)
        };
        JerasureCode { k, m, w, bits, schedule }
    }

    /// `jerasure_schedule_encode`.
    pub fn encode(&self, code: &JerasureCode, data: &[&[u8]], parity: &mut [Vec<u8>], packet: usize) {
        let len = data[0].len();
        assert!(len.is_multiple_of(code.w * packet) && data.len() == code.k && parity.len() == code.m);
        assert!(data.iter().all(|d| d.len() == len) && parity.iter().all(|p| p.len() == len));
        let mut sources: Vec<*mut u8> = data.iter().map(|d| d.as_ptr().cast_mut()).collect();
        let mut targets: Vec<*mut u8> = parity.iter_mut().map(|p| p.as_mut_ptr()).collect();
        type Encode =
            unsafe extern "C" fn(c_int, c_int, c_int, *mut *mut c_int, *mut *mut u8, *mut *mut u8, c_int, c_int);
        // SAFETY: signature of jerasure.h; lengths were checked; data is only read.
        unsafe {
            let encode: libloading::Symbol<'_, Encode> =
                self.library.get(b"jerasure_schedule_encode\0").expect("Jerasure exports it");
            encode(
                code.k as c_int,
                code.m as c_int,
                code.w as c_int,
                code.schedule,
                sources.as_mut_ptr(),
                targets.as_mut_ptr(),
                len as c_int,
                packet as c_int,
            );
        }
    }

    /// `jerasure_schedule_decode_lazy` with a smart schedule: rebuilds the fragments numbered in `lost` in place.
    pub fn decode(&self, code: &JerasureCode, lost: &[usize], fragments: &mut [Vec<u8>], packet: usize) {
        let len = fragments[0].len();
        assert_eq!(fragments.len(), code.k + code.m);
        let (data, parity) = fragments.split_at_mut(code.k);
        let mut sources: Vec<*mut u8> = data.iter_mut().map(|d| d.as_mut_ptr()).collect();
        let mut targets: Vec<*mut u8> = parity.iter_mut().map(|p| p.as_mut_ptr()).collect();
        let mut erasures: Vec<c_int> = lost.iter().map(|i| *i as c_int).chain([-1]).collect();
        type Decode = unsafe extern "C" fn(
            c_int,
            c_int,
            c_int,
            *mut c_int,
            *mut c_int,
            *mut *mut u8,
            *mut *mut u8,
            c_int,
            c_int,
            c_int,
        ) -> c_int;
        // SAFETY: signature of jerasure.h; every fragment has `len` bytes.
        let status = unsafe {
            let decode: libloading::Symbol<'_, Decode> =
                self.library.get(b"jerasure_schedule_decode_lazy\0").expect("Jerasure exports it");
            decode(
                code.k as c_int,
                code.m as c_int,
                code.w as c_int,
                code.bits,
                erasures.as_mut_ptr(),
                sources.as_mut_ptr(),
                targets.as_mut_ptr(),
                len as c_int,
                packet as c_int,
                1,
            )
        };
        assert_eq!(status, 0);
    }
}
