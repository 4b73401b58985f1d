//! Instruction sets that this process may use. An [`Isa`] is only made from what the running CPU supports. It is the
//! proof that the leaves' `unsafe` calls rely on.

use std::sync::OnceLock;

/// What an [`Isa`] allows, from least to most; dispatchers match on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// The reference implementations.
    Reference,
    /// Plain Rust.
    Portable,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512F, BW and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// GFNI, and AVX-512F, BW and VL.
    #[cfg(target_arch = "x86_64")]
    Gfni,
}

/// An instruction set that this CPU supports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Isa(Level);

impl Isa {
    /// The reference implementations: easy to read and slow. Everything else is compared with them.
    pub const REFERENCE: Isa = Isa(Level::Reference);

    /// Plain Rust, which runs everywhere.
    pub const PORTABLE: Isa = Isa(Level::Portable);

    /// The best set of this CPU (detected once per process).
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| *Isa::supported().last().unwrap_or(&Isa::PORTABLE))
    }

    /// Every set of this CPU that has a leaf in some kernel, from the reference to the best. Tests run each.
    pub fn supported() -> Vec<Isa> {
        #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_mut))]
        let mut sets = vec![Isa::REFERENCE, Isa::PORTABLE];
        // Vector lanes are words in memory order, which is the messages' order on little-endian CPUs only.
        #[cfg(target_arch = "aarch64")]
        if cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon") {
            sets.push(Isa(Level::Neon));
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            sets.push(Isa(Level::Avx2));
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
            {
                sets.push(Isa(Level::Avx512));
                if is_x86_feature_detected!("gfni") {
                    sets.push(Isa(Level::Gfni));
                }
            }
        }
        sets
    }

    /// Short name in `status` and the benchmarks.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Reference => "reference",
            Level::Portable => "portable",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Gfni => "avx512+gfni",
        }
    }

    /// The level that dispatchers match on.
    pub fn level(self) -> Level {
        self.0
    }
}

#[cfg(all(test, target_arch = "aarch64", target_endian = "little"))]
mod tests {
    use super::*;

    /// Tests run every supported set; without this check an ARM without its leaves would pass them all.
    #[test]
    fn arm_has_neon() {
        assert_eq!(
            Isa::supported().iter().map(|isa| isa.name()).collect::<Vec<_>>(),
            ["reference", "portable", "neon"]
        );
        assert_eq!(Isa::best().name(), "neon");
    }
}
