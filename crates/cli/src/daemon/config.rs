//! Configuration of the daemons: flags, then a TOML file, then the environment. An unknown or malformed key is an error that names
//! the file, the line and the key (P14).

use crate::args::{DaemonFlags, LogFormat, ManagerRunArgs, NodeRunArgs, RestoreArgs};
use crate::daemon::knobs::{self, Keys};
use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tessera_accel::Spec;
use tessera_net::{Endpoint, ManagerList};
use tessera_node::{NodeConfig, NodeOptions};

/// Values of the `[tuning]` table, by knob.
pub type Tuning = BTreeMap<String, toml::Value>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ManagerFile {
    dir: Option<PathBuf>,
    listen: Option<Vec<String>>,
    advertise: Option<String>,
    host: Option<String>,
    join: Option<Vec<String>>,
    metrics: Option<String>,
    log_format: Option<LogFormat>,
    log_level: Option<String>,
    tuning: Tuning,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NodeFile {
    disks: Option<Vec<PathBuf>>,
    manager: Option<ManagersKey>,
    listen: Option<String>,
    advertise: Option<String>,
    unix_socket: Option<PathBuf>,
    name: Option<String>,
    host: Option<String>,
    device: Option<String>,
    capacity: Option<Capacity>,
    metrics: Option<String>,
    log_format: Option<LogFormat>,
    log_level: Option<String>,
    tuning: Tuning,
}

/// Addresses of managers, with commas between them.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct ManagersKey(ManagerList);

impl TryFrom<String> for ManagersKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(ManagersKey)
    }
}

/// A size, as a number of bytes or as text (`"64G"`).
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a size is a number of bytes, or text with K, M, G or T, such as \"64G\"")]
enum SizeValue {
    Bytes(u64),
    Text(String),
}

/// A limit in bytes, at least 1.
#[derive(Debug, Deserialize)]
#[serde(try_from = "SizeValue")]
struct Capacity(u64);

impl TryFrom<SizeValue> for Capacity {
    type Error = String;

    fn try_from(value: SizeValue) -> Result<Self, String> {
        let text = match value {
            SizeValue::Bytes(bytes) => bytes.to_string(),
            SizeValue::Text(text) => text,
        };
        crate::args::parse_limit(&text).map(Capacity)
    }
}

/// Settings of `tessera manager`.
#[derive(Debug)]
pub struct ManagerSettings {
    /// Directory of the database.
    pub dir: PathBuf,
    /// Addresses to serve.
    pub listen: Vec<Endpoint>,
    /// Address that others are told, instead of the first one.
    pub advertise: Option<String>,
    /// Host label.
    pub host: String,
    /// Peers of a group to join.
    pub join: Vec<Endpoint>,
    /// `--restore`.
    pub restoring: RestoreArgs,
    /// Flags of both daemons, with the keys of the file where a flag is missing.
    pub flags: DaemonFlags,
    /// Knobs.
    pub core: tessera_manager::config::Config,
}

/// Settings of `tessera node`.
pub struct NodeSettings {
    /// Directories of its disks, in order. The first also holds the log voter.
    pub disks: Vec<PathBuf>,
    /// What named the manager, for the log.
    pub manager_from: &'static str,
    /// The device for computations.
    pub device: Spec,
    /// Limit for each disk, in bytes.
    pub capacity_bytes: Option<u64>,
    /// Flags of both daemons, with the keys of the file where a flag is missing.
    pub flags: DaemonFlags,
    /// The node's options, still without open disks.
    pub options: NodeOptions,
}

impl ManagerSettings {
    /// Reads the configuration file and the flags. Flags win.
    ///
    /// # Errors
    /// A key or value that is unknown, malformed or missing, or a file that cannot be read.
    pub fn new(args: ManagerRunArgs) -> Outcome<Self> {
        let (file, base): (ManagerFile, _) = load(&args.flags)?;
        let Some(dir) = args.dir.or(file.dir.map(|d| base.join(d))) else {
            bail!(
                Exit::Usage,
                "tessera manager: no directory for the database; give --dir DIR, or dir in the configuration"
            );
        };
        let listen = if args.listen.is_empty() { file.listen.unwrap_or_default() } else { args.listen };
        let listen = if listen.is_empty() { vec![crate::args::DEFAULT_MANAGER.into()] } else { listen };
        if file.join.as_ref().is_some_and(Vec::is_empty) && args.join.is_empty() {
            bail!(
                Exit::Usage,
                "join is empty: name managers or nodes of the cluster to join, or leave the key out to start a new one"
            );
        }
        let join = if args.join.is_empty() { file.join.unwrap_or_default() } else { args.join };
        let mut core = tessera_manager::config::Config::default();
        apply(&mut [&mut (tessera_manager::config::Config::KNOBS, &mut core)], &file.tuning, &args.flags)?;
        if core.out_after_ms <= core.node_lease_ms {
            let (out, lease) = (core.out_after_ms, core.node_lease_ms);
            bail!(
                Exit::Usage,
                "tuning: out_after_ms ({out}) must exceed node_lease_ms ({lease}), or a node that is out could still acknowledge"
            );
        }
        Ok(ManagerSettings {
            dir,
            listen: endpoints("listen", &listen)?,
            advertise: advertised(args.advertise.or(file.advertise))?,
            host: named_host(args.host.or(file.host))?,
            join: endpoints("join", &join)?,
            restoring: args.restoring,
            flags: merged(args.flags, file.metrics, file.log_format, file.log_level),
            core,
        })
    }
}

impl NodeSettings {
    /// Reads flags, the configuration file and the environment; the first that has a value wins. What the user named
    /// comes before what a shell happens to export.
    ///
    /// # Errors
    /// A key or value that is unknown, malformed or missing, or a file that cannot be read.
    pub fn new(args: NodeRunArgs) -> Outcome<Self> {
        let (file, base): (NodeFile, _) = load(&args.flags)?;
        let of_file = file.disks.unwrap_or_default().into_iter().map(|d| base.join(d)).collect();
        let disks: Vec<PathBuf> = if args.disks.is_empty() { of_file } else { args.disks };
        if disks.is_empty() {
            bail!(Exit::Usage, "tessera node: no disk; give --disk DIR, or disks in the configuration");
        }
        let device = file.device.or_else(|| environment("TESSERA_DEVICE"));
        let device = device.as_deref().map(str::parse).transpose()?;
        let named = |from, text: String| match text.parse() {
            Ok(managers) => Ok((from, managers)),
            Err(error) => Err(failure!(Exit::Usage, "{from}: {error}")),
        };
        let (manager_from, managers): (_, ManagerList) = match (args.manager, file.manager) {
            (Some(text), _) => named("--manager", text)?,
            (None, Some(of_file)) => ("the configuration file", of_file.0),
            (None, None) => match environment("TESSERA_MANAGER") {
                Some(text) => named("TESSERA_MANAGER", text)?,
                None => named("the default", crate::args::DEFAULT_MANAGER.into())?,
            },
        };
        let listen = args.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:0".into());
        let Endpoint::Tcp(listen) = endpoint(&listen)? else {
            bail!(Exit::Usage, "--listen {listen}: a node listens on HOST:PORT; its Unix socket is --unix-socket");
        };
        let host = named_host(args.host.or(file.host))?;
        let mut options = NodeOptions::new(managers, &listen, Vec::new());
        let mut own = (NodeConfig::KNOBS, &mut options.config);
        let mut segments = (tessera_segment::Options::KNOBS, &mut options.segments);
        apply(&mut [&mut own, &mut segments], &file.tuning, &args.flags)?;
        Ok(NodeSettings {
            disks,
            manager_from,
            capacity_bytes: args.capacity.or(file.capacity.map(|capacity| capacity.0)),
            device: args.device.or(device).unwrap_or(Spec::Cpu),
            flags: merged(args.flags, file.metrics, file.log_format, file.log_level),
            options: NodeOptions {
                advertise: advertised(args.advertise.or(file.advertise))?,
                unix_socket: args.unix_socket.or(file.unix_socket.map(|p| base.join(p))),
                name: args.name.or(file.name).unwrap_or_else(|| host.clone()),
                host,
                ..options
            },
        })
    }
}

/// The flags, with the keys of the file where a flag is missing.
fn merged(
    flags: DaemonFlags,
    metrics: Option<String>,
    format: Option<LogFormat>,
    level: Option<String>,
) -> DaemonFlags {
    let (metrics, log_format) = (flags.metrics.or(metrics), flags.log_format.or(format));
    DaemonFlags { metrics, log_format, log_level: flags.log_level.or(level), ..flags }
}

/// A variable of the environment that is set and not empty.
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The address that others are told: they dial it.
fn advertised(address: Option<String>) -> Outcome<Option<String>> {
    match address.as_deref().map(endpoint).transpose()? {
        None | Some(Endpoint::Tcp(_)) => Ok(address),
        Some(other) => bail!(Exit::Usage, "--advertise {other}: other hosts cannot reach that; write HOST:PORT"),
    }
}

/// Parses an address.
///
/// # Errors
/// A usage error that shows the valid forms.
pub fn endpoint(text: &str) -> Outcome<Endpoint> {
    text.parse().map_err(Failure::usage)
}

/// Parses the values of a list; errors name it.
///
/// # Errors
/// As [`endpoint`].
pub fn endpoints(name: &str, texts: &[String]) -> Outcome<Vec<Endpoint>> {
    let parse = |text: &String| text.parse().map_err(|error| Failure::usage(format!("{name}: {error}")));
    texts.iter().map(parse).collect()
}

/// The host that the user named, or else this one.
fn named_host(named: Option<String>) -> Outcome<String> {
    match named {
        Some(host) if host.trim().is_empty() => {
            bail!(Exit::Usage, "host is empty: name this host, or leave --host out to take the system's name")
        }
        named => Ok(named.unwrap_or_else(host_name)),
    }
}

/// This machine's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Reads the configuration file. Also returns the directory that its relative paths start from.
fn load<T: DeserializeOwned + Default>(flags: &DaemonFlags) -> Outcome<(T, PathBuf)> {
    let Some(path) = &flags.config else { return Ok((T::default(), PathBuf::new())) };
    let text = std::fs::read_to_string(path).at(path)?;
    let base = path.parent().map(Path::to_path_buf).unwrap_or_default();
    parse(&text, path).map(|file| (file, base))
}

fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Outcome<T> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let key = text.lines().nth(line.saturating_sub(1)).and_then(|line| line.split_once('='));
        let key = key.map_or(String::new(), |(key, _)| format!("{}: ", key.trim()));
        failure!(Exit::Usage, "{} line {line}: {key}{}", path.display(), error.message())
    })
}

/// Sets knobs: first from the file's table, then from `--set`.
fn apply(configs: &mut [&mut dyn Keys], tuning: &Tuning, flags: &DaemonFlags) -> Outcome {
    let file = flags.config.as_deref().unwrap_or(Path::new("")).display().to_string();
    for (key, value) in tuning {
        knobs::set(configs, key, value).map_err(|e| failure!(Exit::Usage, "{file}: [tuning] {e}"))?;
    }
    for text in &flags.set {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| failure!(Exit::Usage, "--set {text:?} is not KEY=VALUE, as in --set heartbeat_ms=500"))?;
        knobs::set(configs, key.trim(), &toml::Value::String(value.trim().into()))
            .map_err(|e| failure!(Exit::Usage, "--set: {e}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use crate::commands::Command;
    use clap::Parser;

    fn manager(words: &[&str]) -> Outcome<ManagerSettings> {
        let cli = Cli::try_parse_from([&["tessera", "manager"], words].concat()).unwrap();
        let Command::Manager(args) = cli.command else { panic!("not a manager") };
        ManagerSettings::new(args.run)
    }

    fn node(words: &[&str]) -> Outcome<NodeSettings> {
        let cli = Cli::try_parse_from([&["tessera", "node"], words].concat()).unwrap();
        let Command::Node(args) = cli.command else { panic!("not a node") };
        NodeSettings::new(args.run)
    }

    /// P14.
    #[test]
    fn empty_hosts_and_addresses_are_refused_by_name() {
        let (_dir, empty_list) = file("join = []");
        for (words, says) in [
            (&["--host", ""][..], "host is empty"),
            (&["--join", ""], "join: \"\" is not an address"),
            (&["--listen", "here"], "listen: \"here\" is not an address"),
            (&["--config", &empty_list], "join is empty"),
        ] {
            let error = manager(&[&["--dir", "d"], words].concat()).err().unwrap();
            assert!(error.message.starts_with(says), "{}", error.message);
        }
        assert!(node(&["--disk", "d", "--host", " "]).is_err_and(|error| error.message.contains("host is empty")));
    }

    fn file(text: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.toml");
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap().to_string();
        (dir, path)
    }

    #[test]
    fn flags_win_over_the_file_and_paths_start_at_the_file() {
        let (dir, path) = file("dir = 'db'\nlisten = ['127.0.0.1:1']\n[tuning]\nheartbeat_ms = 7\nmax_voters = 3\n");
        let settings = manager(&["--config", &path]).unwrap();
        assert_eq!(settings.dir, dir.path().join("db"));
        assert_eq!((settings.core.heartbeat_ms, settings.core.max_voters), (7, 3));
        let settings =
            manager(&["--config", &path, "--dir", "x", "--listen", "127.0.0.1:2", "--set", "heartbeat_ms=9"]).unwrap();
        assert_eq!(settings.dir, Path::new("x"));
        assert_eq!(settings.listen, [Endpoint::Tcp("127.0.0.1:2".into())]);
        assert_eq!(settings.core.heartbeat_ms, 9);
    }

    #[test]
    fn sizes_may_be_text() {
        let (_dir, path) = file("disks=['a','b']\ncapacity='2G'\n[tuning]\nsegment_size_bytes='1M'\n");
        let settings = node(&["--config", &path]).unwrap();
        assert_eq!((settings.disks.len(), settings.capacity_bytes), (2, Some(2 << 30)));
        assert_eq!(settings.device, Spec::Cpu);
        let (_dir, path) = file("disks=['a']\ndevice='auto'");
        assert_eq!(node(&["--config", &path]).unwrap().device, Spec::Auto);
        assert_eq!(node(&["--config", &path, "--device", "emulated:2"]).unwrap().device, Spec::Emulated(2));
        let (_dir, path) = file("disks=['a']\ndevice='gpu'");
        assert!(node(&["--config", &path]).err().unwrap().message.contains("\"gpu\""));
        let (_dir, path) = file("disks=['a','b']\n[tuning]\nsegment_size_bytes='1M'\n");
        let settings = node(&["--config", &path]).unwrap();
        assert_eq!(settings.options.segments.segment_size_bytes, 1 << 20);
    }

    /// P14: the error for an unknown or malformed key names the key and its place.
    #[test]
    fn bad_configuration_is_refused_by_name() {
        for (text, words) in [
            ("dir='d'\ncolour='red'", vec!["colour", "line 2", "expected one of"]),
            ("dir='d'\n[tuning]\nheartbeats_ms=1", vec!["heartbeats_ms", "heartbeat_ms"]),
            ("dir='d'\n[tuning]\nheartbeat_ms='soon'", vec!["heartbeat_ms", "soon", "ms"]),
            ("dir='d'\n[tuning]\nheartbeat_ms=-1", vec!["heartbeat_ms", "-1"]),
            ("dir='d'\n[tuning]\nmax_list_entries=5000000000", vec!["max_list_entries", "5000000000"]),
            ("dir='d'\n[tuning]\nout_after_ms=10\nnode_lease_ms=20", vec!["out_after_ms", "node_lease_ms"]),
            ("dir=5", vec!["t.toml line 1: dir: ", "string"]),
            ("dir='d", vec!["line 1"]),
            ("dir='d'\nlisten=['nowhere']", vec!["nowhere", "HOST:PORT"]),
            ("", vec!["--dir"]),
        ] {
            let (_dir, path) = file(text);
            let failure = manager(&["--config", &path]).unwrap_err();
            assert_eq!(failure.exit, crate::exit::Exit::Usage, "{text}");
            for word in words {
                assert!(failure.message.contains(word), "{text:?} should name {word:?}: {}", failure.message);
            }
            assert!(!failure.message.contains('\n'));
        }
        assert!(manager(&["--dir", "d", "--set", "x"]).unwrap_err().message.contains("KEY=VALUE"));
        assert!(node(&[]).err().unwrap().message.contains("--disk"));
        for (value, words) in [("'12Q'", "12Q"), ("0", "at least 1 byte"), ("true", "a size is")] {
            let (_dir, path) = file(&format!("disks=['a']\ncapacity = {value}"));
            let failure = node(&["--config", &path]).err().unwrap();
            let named = failure.message.contains("t.toml line 2: capacity: ") && failure.message.contains(words);
            assert!(named, "{value}: {failure}");
        }
    }

    /// P14.
    #[test]
    fn several_managers_are_named_with_commas_everywhere() {
        let (_dir, path) = file("disks=['a']\nmanager='10.0.0.1:7700, unix:/run/m'");
        let settings = node(&["--config", &path]).unwrap();
        assert_eq!(settings.options.managers.to_string(), "10.0.0.1:7700,unix:/run/m");
        assert_eq!(settings.manager_from, "the configuration file");
        let settings = node(&["--config", &path, "--manager", "a:1,b:2"]).unwrap();
        assert_eq!((settings.options.managers.to_string(), settings.manager_from), ("a:1,b:2".into(), "--manager"));
        let many = (0..17).map(|i| format!("h{i}:1")).collect::<Vec<_>>().join(",");
        for (list, words) in
            [("", "no manager"), ("a:1,", "empty"), ("a:1,a:1", "twice"), ("a:1,b", "\"b\""), (&many, "16 at most")]
        {
            let failure = node(&["--disk", "d", "--manager", list]).err().unwrap();
            assert!(failure.message.contains(words) && failure.message.starts_with("--manager: "), "{failure}");
            let (_dir, path) = file(&format!("disks=['a']\nmanager='{list}'"));
            let failure = node(&["--config", &path]).err().unwrap();
            assert!(
                failure.message.contains("t.toml line 2: manager: ") && failure.message.contains(words),
                "{failure}"
            );
        }
        let (_dir, path) = file("disks=['a']\nmanager=['a:1']");
        assert!(node(&["--config", &path]).err().unwrap().message.contains("t.toml line 2: manager: "));
    }
}
