//! Arguments of `tessera flash`, the flash laboratory.

use super::NodeRunArgs;
use crate::term::Out;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use tessera_accel::Spec;
use tessera_flash::ftl::{self, ColaOptions, CpftlOptions, Layer};
use tessera_flash::synthetic::Plan;
use tessera_flash::trace::{FORMATS, Format, Writer};
use tessera_flash::{Config, Order, Policy, Shape, Timing, parse_duration};

/// `tessera flash …`.
#[derive(Debug, Subcommand)]
pub enum FlashCommand {
    /// Replay block traces on simulated SSDs, one for each trace, translation layer and map cache.
    #[command(after_help = "\
Layers: ideal (the whole map in memory), dftl, sftl, tpftl, cpftl, leaftl, learnedftl, cola. docs/flash.md explains layers, formats and figures.

Examples:
  tessera flash replay financial.spc --ftl ideal,dftl,tpftl --map-cache 256K,1M
  tessera flash replay web.trace.gz --capacity 16G --preload --host-cache 800M --json
  tessera flash replay web.trace --ftl tpftl,cpftl --train 50% --cpftl support=2,no-skew
  xzcat web.trace.xz | tessera flash replay - --ftl leaftl --error-bound 4
  tessera flash replay msr.csv --geometry channels=8,dies=2 --timing read=50us,transfer=10us --compact")]
    Replay(ReplayArgs),
    /// Serve an emulated SSD as a network block device, until the command is ended; what it holds is lost then, unless --backing names a file.
    #[command(after_help = "\
Examples:
  tessera flash serve --capacity 4G --ftl cpftl --nbd unix:/tmp/ssd.sock --timing emulator
  tessera flash serve --capacity 1G --nbd 127.0.0.1:10809 --control /tmp/ssd.control
  tessera flash serve --capacity 1G --nbd unix:/tmp/ssd.sock --write-buffer 1M --cut-after 10000 --cut-seed 7 --cut-for 100
  tessera flash serve --capacity 4G --ftl cpftl --nbd unix:/tmp/ssd.sock --learn-after 100000
  tessera flash serve --capacity 1T --nbd unix:/tmp/ssd.sock --backing /data/ssd
  nbdcopy image 'nbd+unix:///?socket=/tmp/ssd.sock'")]
    Serve(ServeArgs),
    /// Run a node, or CONA under YCSB, and record what it asks of its disk as a block trace.
    #[command(after_help = "\
Each disk is a device of the trace. At the end, totals by kind of file are printed. docs/flash.md says how files
get addresses, and what the trace leaves out.

Examples:
  tessera flash record --out node.fio node --disk /srv/d1 --manager 10.0.0.1:7700
  tessera flash record --out cona.fio cona --dir /srv/scratch --records 500000 --ops 2000000
  tessera flash replay node.fio --ftl ideal,dftl,tpftl,cpftl --preload")]
    Record(RecordArgs),
    /// Show the figures of an emulated SSD that `serve` serves, as those of `replay`.
    #[command(after_help = "\
Examples:
  tessera flash stat /tmp/ssd.sock.control
  tessera flash stat /tmp/ssd.sock.control --prometheus > /var/lib/node_exporter/ssd.prom")]
    Stat(FlashStatArgs),
    /// Cut the power of an emulated SSD that `serve` serves, or turn it on.
    #[command(after_help = "\
What only the write buffer had is lost, and every request fails until power returns.

Examples:
  tessera flash cut /tmp/ssd.sock.control
  tessera flash cut /tmp/ssd.sock.control --restore
  tessera flash cut /tmp/ssd.sock.control --for 500")]
    Cut(FlashCutArgs),
    /// Look at block traces.
    #[command(subcommand)]
    Trace(TraceCommand),
}

/// Arguments of `tessera flash record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// New file for the trace (fio's iolog), on another disk than the one that is recorded.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Output.
    #[command(flatten)]
    pub output: Out,
    /// What is recorded.
    #[command(subcommand)]
    pub program: Recorded,
}

/// What can be recorded.
#[derive(Debug, Subcommand)]
pub enum Recorded {
    /// Run a node until it is ended; its options are those of `tessera node`.
    Node(Box<NodeRunArgs>),
    /// Load records into a new CONA store, then read and update them as YCSB A does: half each, some records far more often.
    Cona(RecordConaArgs),
}

/// Arguments of `tessera flash record … cona`.
#[derive(Debug, Args)]
pub struct RecordConaArgs {
    /// Directory of the store: an empty or new one. It stays.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Records to load.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// Operations after that.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub ops: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub value_bytes: u32,
    /// Bytes of an insert buffer.
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = tessera_policy::parse_size)]
    pub buffer: u64,
    /// Acknowledge a write once it is synced, not once the system has it.
    #[arg(long)]
    pub sync: bool,
}

/// `tessera flash trace …`.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Show format, devices, span, sizes and times of traces.
    Info {
        /// How traces are read.
        #[command(flatten)]
        reading: ReadingArgs,
        /// Output.
        #[command(flatten)]
        output: Out,
    },
    /// Write a trace to stdout in another format; time begins at 0.
    Convert {
        /// Trace: text, or compressed with gzip, bzip2 or zstd; `-` is stdin.
        #[arg(value_name = "TRACE")]
        trace: PathBuf,
        /// How its lines are read.
        #[command(flatten)]
        lines: LineArgs,
        /// Format to write: spc, msr, disksim, ssdsim, mqsim or fio.
        #[arg(long, value_name = "FORMAT", value_parser = written)]
        to: (&'static str, Writer),
        /// Output.
        #[command(flatten)]
        output: Out,
    },
    /// Make a synthetic trace, fitted to a trace or of stated shares, and write it to stdout; its first lines say so.
    #[command(after_help = "\
Examples:
  tessera flash trace synthesize web.trace --requests 5000000 --correlated 60% > web-long.spc
  tessera flash trace synthesize --footprint 16G --reads 65.6% --skew 0.9 --read-size 2560 --gap 9ms > oltp.spc")]
    Synthesize(SynthesizeArgs),
}

/// What `replay` and `serve` simulate, beside capacity, map cache, geometry and times.
#[derive(Debug, Clone, Args)]
pub struct SsdArgs {
    /// What cpftl does: no-sequential, no-correlation, full-mining, full-search, no-dirty-index, no-skew, or numbers such as
    /// support=2 (docs/flash.md lists them).
    #[arg(long, value_name = "OPTIONS", default_value = "support=1", value_parser = CpftlOptions::parse)]
    pub cpftl: CpftlOptions,
    /// Pages by which a place that leaftl predicts may be wrong; a wrong one costs a read.
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    pub error_bound: u32,
    /// How large cola's buffer is: buffer=N (entries), or height=N (as many as bound the number of levels).
    #[arg(long, value_name = "OPTIONS", default_value = "buffer=4096", value_parser = ColaOptions::parse)]
    pub cola: ColaOptions,
    /// Device that searches cola's levels: cpu, auto, cuda, cuda:N, emulated (for tests, slow).
    #[arg(long, env = "TESSERA_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    pub device: Spec,
    /// Which block is collected: greedy or cost-benefit.
    #[arg(long, default_value = "greedy", value_parser = policy)]
    pub gc: Policy,
    /// Spare blocks in percent of the capacity.
    #[arg(long, value_name = "PERCENT", default_value = "15%", value_parser = percent)]
    pub over_provisioning: f64,
    /// Bytes of a write buffer in the device, whose pages are programmed in the order of logical pages; a power cut drops what
    /// was not flushed from it. 0: a write that is complete is on flash.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = tessera_policy::parse_size)]
    pub write_buffer: u64,
}

impl SsdArgs {
    /// An SSD of one die with the times of the CPFTL paper; the CPU does all searches.
    pub fn config(&self, capacity: u64, layer: &Layer, map_cache: u64) -> Config {
        Config {
            map_cache,
            write_buffer: self.write_buffer,
            cpftl: self.cpftl,
            error_bound: self.error_bound,
            cola: self.cola,
            policy: self.gc,
            over_provisioning: self.over_provisioning,
            ..Config::new(capacity, layer.name)
        }
    }
}

/// Arguments of `tessera flash serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Bytes that the host can address, with K, M, G.
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: u64,
    /// Where to listen: unix:PATH or HOST:PORT.
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: String,
    /// Translation layer.
    #[arg(long, default_value = "ideal", value_parser = layer)]
    pub ftl: &'static Layer,
    /// Bytes of memory for the map.
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = tessera_policy::parse_size)]
    pub map_cache: u64,
    /// Delay replies as an SSD with these times would: real (as emulator), simulation, emulator, or as for replay; `none`: as fast as it goes.
    #[arg(long, default_value = "none", value_parser = delays)]
    pub timing: Delays,
    /// one-die, four-channels, or channels=N,chips=N,dies=N,planes=N,pages=N,page=N,oob=N.
    #[arg(long, default_value = "four-channels", value_parser = Shape::parse)]
    pub geometry: Shape,
    /// The layer and the device.
    #[command(flatten)]
    pub ssd: SsdArgs,
    /// Where the data are: `memory`, or a sparse file that the next server may go on with; it is made if need be.
    #[arg(long, value_name = "memory|FILE", default_value = "memory")]
    pub backing: PathBuf,
    /// Serve the SSD as this file, too, through FUSE: a loop device makes it a disk. It is made if need be.
    #[arg(long, value_name = "FILE")]
    pub fuse: Option<PathBuf>,
    /// Unix socket for `tessera flash stat` and `cut`. [default: that of --nbd with .control behind it; none for HOST:PORT]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Cut the power after so many requests, and again so many after it returned.
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub cut_after: Option<u64>,
    /// Cut after a random number of requests instead, at most those of --cut-after; equal seeds draw equal numbers.
    #[arg(long, value_name = "N", requires = "cut_after")]
    pub cut_seed: Option<u64>,
    /// Let power return so many ms after each cut of --cut-after; without it, `tessera flash cut --restore` turns it on.
    #[arg(long, value_name = "MS", requires = "cut_after", value_parser = clap::value_parser!(u64).range(..=MAX_OFF_MS))]
    pub cut_for: Option<u64>,
    /// Let the layer (cpftl) learn from so many requests, and write what it learned; requests wait meanwhile.
    /// After a power cut it learns anew.
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub learn_after: Option<u64>,
    /// Output.
    #[command(flatten)]
    pub output: Out,
}

/// The longest time without power: a day.
const MAX_OFF_MS: u64 = 86_400_000;

/// Arguments of `tessera flash stat`.
#[derive(Debug, Clone, Args)]
pub struct FlashStatArgs {
    /// Control socket of the server.
    #[arg(value_name = "PATH")]
    pub control: PathBuf,
    /// Print in the text format of Prometheus.
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
    /// Output.
    #[command(flatten)]
    pub output: Out,
}

/// Arguments of `tessera flash cut`.
#[derive(Debug, Clone, Args)]
pub struct FlashCutArgs {
    /// Control socket of the server.
    #[arg(value_name = "PATH")]
    pub control: PathBuf,
    /// Turn the power on.
    #[arg(long, conflicts_with = "off_for")]
    pub restore: bool,
    /// Let power return after so many ms; the command does not wait for it.
    #[arg(long = "for", value_name = "MS", value_parser = clap::value_parser!(u64).range(..=MAX_OFF_MS))]
    pub off_for: Option<u64>,
    /// Output.
    #[command(flatten)]
    pub output: Out,
}

/// Times of flash operations, if replies are delayed.
pub type Delays = std::option::Option<Timing>;

/// Arguments of `tessera flash trace synthesize`.
#[derive(Debug, Clone, Args)]
pub struct SynthesizeArgs {
    /// A trace to fit to; without one, every share is as stated. What is stated replaces what was measured.
    #[arg(value_name = "TRACE")]
    pub trace: Option<PathBuf>,
    /// Format of TRACE; without it, it is recognized.
    #[arg(long, value_parser = format)]
    pub format: Option<&'static Format>,
    /// Leave out lines of TRACE that are wrong.
    #[arg(long)]
    pub skip_bad: bool,
    /// Requests to make.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub requests: u64,
    /// Equal seeds make equal traces.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Format to write: spc, msr, disksim, ssdsim, mqsim or fio.
    #[arg(long, value_name = "FORMAT", default_value = "spc", value_parser = written)]
    pub to: (&'static str, Writer),
    /// Share of reads.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub reads: Option<f64>,
    /// Share of requests that begin where the one before them ended.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub sequential: Option<f64>,
    /// Share of the reads that belong to groups of pages which are read together.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub correlated: Option<f64>,
    /// Pages of such a group.
    #[arg(long, value_name = "PAGES", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub group: u32,
    /// Number of such groups.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub groups: u32,
    /// Exponent of a Zipf distribution of such groups; 0: all are read equally often.
    #[arg(long, value_name = "EXPONENT", default_value = "0", value_parser = skew)]
    pub group_skew: f64,
    /// Bytes of the device in which the pages of such groups lie; without it, all that are touched.
    #[arg(long, value_name = "SIZE", value_parser = above_zero)]
    pub cluster: Option<u64>,
    /// Draw pages by a Zipf distribution with this exponent, in place of the reuse distances of TRACE; 0 is uniform.
    #[arg(long, value_name = "EXPONENT", value_parser = skew)]
    pub skew: Option<f64>,
    /// Bytes of the device that are touched; with TRACE, they are those that it touches.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = above_zero, conflicts_with = "trace")]
    pub footprint: u64,
    /// Mean size of a read.
    #[arg(long, value_name = "SIZE", value_parser = above_zero)]
    pub read_size: Option<u64>,
    /// Mean size of a write.
    #[arg(long, value_name = "SIZE", value_parser = above_zero)]
    pub write_size: Option<u64>,
    /// Mean time between arrivals, with ns, us or ms.
    #[arg(long, value_name = "TIME", value_parser = gap)]
    pub gap: Option<u64>,
    /// Output.
    #[command(flatten)]
    pub output: Out,
}

impl SynthesizeArgs {
    /// What the trace is to be like.
    pub fn plan(&self) -> Plan {
        Plan {
            requests: self.requests,
            seed: self.seed,
            reads: self.reads,
            sequential: self.sequential,
            correlated: self.correlated,
            group: self.group,
            groups: self.groups,
            group_skew: self.group_skew,
            cluster: self.cluster,
            skew: self.skew,
            footprint: self.footprint,
            sizes: [self.read_size, self.write_size],
            gap: self.gap,
        }
    }
}

/// How traces are read.
#[derive(Debug, Clone, Args)]
pub struct ReadingArgs {
    /// Traces: text, or compressed with gzip, bzip2 or zstd; `-` is stdin.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// How their lines are read.
    #[command(flatten)]
    pub lines: LineArgs,
}

/// How the lines of traces are read.
#[derive(Debug, Clone, Copy, Args)]
pub struct LineArgs {
    /// Format; without it, it is recognized: fio, vscsi, msr, spc, tencent, blkparse, disksim, ssdsim, mqsim.
    #[arg(long, value_parser = format)]
    pub format: Option<&'static Format>,
    /// Leave out lines that are wrong, and count them.
    #[arg(long)]
    pub skip_bad: bool,
}

/// Arguments of `tessera flash replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// How traces are read.
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Translation layers.
    #[arg(long, value_delimiter = ',', default_value = "ideal,dftl,sftl,tpftl,cpftl,leaftl,learnedftl,cola", value_parser = layer)]
    pub ftl: Vec<&'static Layer>,
    /// Bytes that the host can address, with K, M, G; without it, the span of the trace.
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<u64>,
    /// Bytes of memory for the map.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "256K", value_parser = tessera_policy::parse_size)]
    pub map_cache: Vec<u64>,
    /// Share of the requests, from the first on, that layers learn from; figures are of the rest, for every layer.
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = train)]
    pub train: f64,
    /// The layers and the device.
    #[command(flatten)]
    pub ssd: SsdArgs,
    /// one-die, four-channels, or channels=N,chips=N,dies=N,planes=N,pages=N,page=N,oob=N.
    #[arg(long, default_value = "one-die", value_parser = Shape::parse)]
    pub geometry: Shape,
    /// simulation (25 us, 200 us, 1.5 ms), emulator (25 us, 300 us, 3 ms), or read=TIME,program=TIME,erase=TIME,transfer=TIME.
    #[arg(long, default_value = "simulation", value_parser = Timing::parse)]
    pub timing: Timing,
    /// Bytes of a write-back cache of the host in front of the device.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = tessera_policy::parse_size)]
    pub host_cache: u64,
    /// Write every page before the trace begins: once in `sequential` or `random` order, or `overwritten`: as many again at random.
    #[arg(long, value_name = "ORDER", num_args = 0..=1, require_equals = true, default_missing_value = "sequential", value_parser = order)]
    pub preload: Option<Order>,
    /// Cut the power of the device after so many requests, again and again; layers recover the map from out-of-band areas.
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub cut_every: Option<u64>,
    /// Let requests beyond the end of the device begin again at its start.
    #[arg(long)]
    pub wrap: bool,
    /// Leave out regions of 1 MiB that no request touches.
    #[arg(long)]
    pub compact: bool,
    /// Also write a page with the table and plots; it needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Output.
    #[command(flatten)]
    pub output: Out,
}

fn format(text: &str) -> Result<&'static Format, String> {
    let known = || FORMATS.iter().map(|f| f.name).collect::<Vec<_>>().join(", ");
    tessera_flash::trace::find(text).ok_or_else(|| format!("no format is named `{text}`; there are {}", known()))
}

fn written(text: &str) -> Result<(&'static str, Writer), String> {
    let written = || FORMATS.iter().filter(|f| f.writer.is_some()).map(|f| f.name).collect::<Vec<_>>().join(", ");
    let found = tessera_flash::trace::find(text).and_then(|format| Some((format.name, format.writer?)));
    found.ok_or_else(|| format!("`{text}` cannot be written; there are {}", written()))
}

fn layer(text: &str) -> Result<&'static Layer, String> {
    ftl::find(text).map_err(|e| e.to_string())
}

fn capacity(text: &str) -> Result<u64, String> {
    match tessera_policy::parse_size(text).map_err(|e| e.to_string())? {
        0 => Err("a device without pages serves nothing; name a capacity above 0, such as 16G".into()),
        bytes => Ok(bytes),
    }
}

fn above_zero(text: &str) -> Result<u64, String> {
    match tessera_policy::parse_size(text).map_err(|e| e.to_string())? {
        0 => Err("it must be above 0, such as 4K".into()),
        bytes => Ok(bytes),
    }
}

fn delays(text: &str) -> Result<Delays, String> {
    match text {
        "none" => Ok(None),
        "real" => Ok(Some(Timing::EMULATOR)),
        _ => Timing::parse(text).map(Some).map_err(|e| e.to_string()),
    }
}

fn order(text: &str) -> Result<Order, String> {
    match text {
        "sequential" => Ok(Order::Sequential),
        "random" => Ok(Order::Random),
        "overwritten" => Ok(Order::Overwritten),
        _ => Err("write --preload=sequential, --preload=random or --preload=overwritten".into()),
    }
}

fn policy(text: &str) -> Result<Policy, String> {
    match text {
        "greedy" => Ok(Policy::Greedy),
        "cost-benefit" => Ok(Policy::CostBenefit),
        _ => Err("write greedy or cost-benefit".into()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = percent(text).ok().filter(|share| *share <= 1.0);
    share.ok_or_else(|| format!("`{text}` is not a share from 0% to 100%"))
}

fn skew(text: &str) -> Result<f64, String> {
    let exponent = text.parse::<f64>().ok().filter(|exponent| (0.0..=5.0).contains(exponent));
    exponent.ok_or_else(|| format!("`{text}` is not an exponent from 0 to 5"))
}

fn gap(text: &str) -> Result<u64, String> {
    parse_duration(text).ok_or_else(|| format!("`{text}` is not a time up to 10 s: write 500ns, 25us or 1.5ms"))
}

fn train(text: &str) -> Result<f64, String> {
    let share = percent(text).ok().filter(|share| *share < 1.0);
    share.ok_or_else(|| format!("`{text}` is not a share from 0% to below 100%; figures are of the rest"))
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let share = number.filter(|n| (0.0..=1000.0).contains(n)).map(|n| n / 100.0);
    share.ok_or_else(|| format!("`{text}` is not a share from 0% to 1000%"))
}
