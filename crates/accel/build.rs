//! Compiles the kernels for the emulated device, with the host's C compiler.

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    cc::Build::new()
        .file("kernels/host/emulate.c")
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-fno-strict-aliasing")
        .compile("tessera_accel_emulated");
}
