//! Arguments of `tessera accel`, which computes on local files without a store.

use crate::term::Out;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use tessera_accel::Spec;
use tessera_accel::erasure::Matrix;
use tessera_hashgpu::digest::Function;
use tessera_policy::{Chunking, Policy};

/// Where and how an accelerator command runs.
#[derive(Debug, Clone, Copy, Args)]
pub struct OnDevice {
    /// Device that computes: cpu, auto, cuda, cuda:N, emulated, emulated:N (N of them; for tests, slow).
    #[arg(long, short, env = "TESSERA_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    pub device: Spec,
    /// Output.
    #[command(flatten)]
    pub output: Out,
}

/// `tessera accel …`.
#[derive(Debug, Subcommand)]
pub enum AccelCommand {
    /// List the devices of this machine, and why others cannot be used.
    #[command(after_help = "\
Examples:
  tessera accel list
  tessera accel list --json")]
    List {
        /// Output.
        #[command(flatten)]
        output: Out,
    },
    /// Measure every primitive on a device and on the CPU, and show which of them `auto` would choose.
    #[command(after_help = "\
Examples:
  tessera accel bench
  tessera accel bench --device cuda:0 --size 64M
  tessera accel bench --device cuda --ablate       the gain of buffer reuse, overlap and a second device")]
    Bench(BenchArgs),
    /// Print digests of files: BLAKE3 (as the store and b3sum compute it), MD5, SHA-1 or SHA-256.
    #[command(after_help = "\
With --segment the segments of a file are hashed side by side, and the result is the digest of their digests.

Examples:
  tessera accel hash model.bin
  tessera accel hash --function sha256 --device cuda:0 *.bin
  tessera accel hash --function md5 --segment 4K --json disk.img")]
    Hash(HashArgs),
    /// Hash every window of W bytes at steps of S.
    #[command(after_help = "\
Examples:
  tessera accel windows --window 20 --step 4 model.bin
  tessera accel windows --function sha1 --window 64 --step 1 --width 4 --output hashes.bin model.bin")]
    Windows(WindowsArgs),
    /// Show where the store would cut files into chunks.
    #[command(after_help = "\
Examples:
  tessera accel boundaries --chunking cdc:64K..1M disk.img
  tessera accel boundaries --json db.sql")]
    Boundaries {
        /// Rule, as in the hint `chunking`: cdc:MIN..MAX, fixed:SIZE or cbch:M,K,P.
        #[arg(long, value_name = "RULE", default_value = "cdc:256K..4M", value_parser = chunking)]
        chunking: Chunking,
        /// Files.
        #[command(flatten)]
        files: FilesArgs,
    },
    /// Split files into k data and m parity fragments, written beside each file.
    #[command(after_help = "\
FILE.fragment.N are the fragments; FILE.fragments.json describes the code and has their digests.

Examples:
  tessera accel encode -k 4 -m 2 model.bin
  tessera accel encode --code liberation -k 5 -m 2 -w 7 --packet 4K model.bin")]
    Encode(EncodeArgs),
    /// Rebuild files from any k of their fragments.
    #[command(after_help = "\
Fragments that are missing or do not match their digest are not used.

Examples:
  tessera accel decode model.bin                    from model.bin.fragment.N
  tessera accel decode --output copy.bin model.bin")]
    Decode {
        /// Write to PATH instead of FILE; only with one FILE.
        #[arg(long, short, value_name = "PATH")]
        output: Option<PathBuf>,
        /// Overwrite existing files.
        #[arg(long)]
        force: bool,
        /// Files.
        #[command(flatten)]
        files: FilesArgs,
    },
    /// Show which fragments of files are missing or damaged; the exit code is 5 if any is.
    #[command(after_help = "\
Examples:
  tessera accel verify model.bin
  tessera accel verify --json *.img")]
    Verify(FilesArgs),
}

/// `tessera accel bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Bytes of input in a job.
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = size)]
    pub size: usize,
    /// Measure also without buffer reuse, without overlap, and with one more device.
    #[arg(long)]
    pub ablate: bool,
    /// Device.
    #[command(flatten)]
    pub on: OnDevice,
}

/// Files for a device.
#[derive(Debug, Args)]
pub struct FilesArgs {
    /// Files.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Device.
    #[command(flatten)]
    pub on: OnDevice,
}

/// `tessera accel hash`.
#[derive(Debug, Args)]
pub struct HashArgs {
    /// Hash function: blake3, md5, sha1, sha256.
    #[arg(long, value_name = "NAME", default_value = "blake3")]
    pub function: Function,
    /// Print the digest of the digests of segments of this size, instead of the digest of the whole file.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment: Option<usize>,
    /// Files.
    #[command(flatten)]
    pub files: FilesArgs,
}

/// `tessera accel windows`.
#[derive(Debug, Args)]
pub struct WindowsArgs {
    /// Hash function: md5, sha1, sha256, blake3 (always on the CPU).
    #[arg(long, value_name = "NAME", default_value = "md5")]
    pub function: Function,
    /// Bytes in a window.
    #[arg(long, value_name = "SIZE", default_value = "20", value_parser = size)]
    pub window: usize,
    /// Distance of the starts of two windows, in bytes.
    #[arg(long, value_name = "SIZE", default_value = "4", value_parser = size)]
    pub step: usize,
    /// Bytes to keep of each digest, from its start. [default: all]
    #[arg(long, value_name = "BYTES")]
    pub width: Option<usize>,
    /// Write the results to PATH, one after another, instead of one line each; only with one FILE.
    #[arg(long, short, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Overwrite existing files.
    #[arg(long)]
    pub force: bool,
    /// Files.
    #[command(flatten)]
    pub files: FilesArgs,
}

/// Codes: `rs`, or the technique of an XOR code.
const CODES: [&str; 5] = ["rs", "liberation", "blaum_roth", "cauchy_orig", "cauchy_good"];

/// `tessera accel encode`.
#[derive(Debug, Args)]
pub struct EncodeArgs {
    /// Code: rs (Reed-Solomon over GF(2^8), k + m up to 255), or one of XORs alone: liberation (m = 2, w an odd prime,
    /// k up to w), blaum_roth (m = 2, w + 1 prime, k up to w), cauchy_orig or, with fewer XORs, cauchy_good (k + m up to 2^w).
    #[arg(long, value_name = "NAME", value_parser = CODES, default_value = "rs")]
    pub code: String,
    /// Matrix of `rs`: cauchy1, vandermonde, reed_sol_van, cauchy_orig, cauchy_good.
    #[arg(long, value_name = "NAME", default_value = "cauchy1")]
    pub matrix: Matrix,
    /// Data fragments.
    #[arg(short, value_name = "K", default_value_t = 4)]
    pub k: usize,
    /// Parity fragments.
    #[arg(short, value_name = "M", default_value_t = 2)]
    pub m: usize,
    /// Packets of a fragment in a stripe; only for XOR codes.
    #[arg(short, value_name = "W", default_value_t = 7)]
    pub w: usize,
    /// Bytes in a packet; only for XOR codes.
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    pub packet: usize,
    /// Overwrite existing fragments.
    #[arg(long)]
    pub force: bool,
    /// Files.
    #[command(flatten)]
    pub files: FilesArgs,
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = tessera_policy::parse_size(text).map_err(|e| e.to_string())?;
    usize::try_from(bytes).map_err(|_| format!("{text} exceeds the address space of this machine"))
}

fn chunking(text: &str) -> Result<Chunking, String> {
    let mut policy = Policy::default();
    policy.set("chunking", text).map_err(|e| e.to_string())?;
    Ok(policy.chunking)
}
