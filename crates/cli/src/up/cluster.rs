//! The child processes of one local store.

use super::child::{self, Child, DaemonCommand};
use super::directory::Directory;
use crate::args::UpArgs;
use crate::daemon::restore;
use crate::daemon::signals::{Event, Events};
use crate::exit::{At, Exit, Outcome, bail, failure};
use crate::remote;
use crate::term::{Out, Table};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tessera_net::Endpoint;
use tessera_wire::Health;

/// A daemon gets this long to end after SIGTERM.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// A daemon's metrics port is its own port plus this.
const METRICS_OFFSET: u16 = 100;

/// Composition of the store.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Number of nodes.
    pub nodes: u32,
    /// Disks of each node.
    pub disks: u32,
    /// Address of the manager.
    pub listen: String,
    /// More arguments for the manager.
    pub manager_args: Vec<String>,
    /// More arguments for every node.
    pub node_args: Vec<String>,
    /// Let the manager join with an empty directory what the nodes' voters keep.
    pub restore: bool,
}

impl Shape {
    /// The requested shape, or the one that the directory has.
    ///
    /// # Errors
    /// Fewer nodes or disks are requested than the directory holds: their data would be missing. Or the directory has
    /// nodes without their manager's database, and a new manager would not know them (P14).
    pub fn of(args: &UpArgs, directory: &Directory) -> Outcome<Shape> {
        let (nodes, disks) = directory.found();
        let pick = |requested: Option<u32>, found: u32, default: u32, what: &str| match requested {
            Some(requested) if requested < found => bail!(
                Exit::Usage,
                "{} holds {found} {what}, --{what} {requested} would not start all; drain the others first, or omit --{what}",
                directory.root().display()
            ),
            requested => Ok(requested.unwrap_or(if found > 0 { found } else { default })),
        };
        let config = |file: &Option<PathBuf>| {
            file.iter().flat_map(|file| ["--config".into(), file.display().to_string()]).collect()
        };
        let nodes = pick(args.nodes, nodes, 8, "nodes")?;
        let disks = pick(args.disks, disks, 1, "disks")?;
        port(&args.listen, nodes)?;
        directory.check_manager(nodes, disks, args.restore)?;
        Ok(Shape {
            restore: args.restore,
            nodes,
            disks,
            listen: args.listen.clone(),
            manager_args: config(&args.manager_config),
            node_args: config(&args.node_config),
        })
    }
}

/// Host and port of the manager. The ports above it must exist, for nodes and metrics.
fn port(listen: &str, nodes: u32) -> Outcome<(String, u16)> {
    let Endpoint::Tcp(address) = crate::daemon::config::endpoint(listen)? else {
        bail!(Exit::Usage, "--listen {listen}: write HOST:PORT; nodes take the ports after it");
    };
    let (host, port) = address.rsplit_once(':').unwrap_or((&address, "0"));
    let port: u16 = port.parse().unwrap_or(0);
    let last = u32::from(port) + nodes + u32::from(METRICS_OFFSET);
    if last > u32::from(u16::MAX) || (nodes >= u32::from(METRICS_OFFSET) && port != 0) {
        bail!(
            Exit::Usage,
            "--listen {listen}: {nodes} nodes and their metrics do not fit in the ports after it; choose a lower port, or 0 for any"
        );
    }
    Ok((host.to_string(), port))
}

/// A child that died by itself.
#[derive(Debug, Clone)]
pub struct Death {
    /// Name of the daemon.
    pub name: String,
    /// Exit code or signal, in words.
    pub how: String,
    /// Path of its log.
    pub log: String,
    /// Last line of the log.
    pub last_line: Option<String>,
    /// Number of its deaths since the start.
    pub deaths: u32,
}

impl Death {
    /// The death in one line.
    pub fn text(&self) -> String {
        let last = self.last_line.as_ref().map(|l| format!("; its last line: {l}")).unwrap_or_default();
        format!("{} died ({}){last}; log {}", self.name, self.how, self.log)
    }
}

struct Member {
    command: DaemonCommand,
    child: Option<Child>,
    deaths: u32,
}

/// A manager and its nodes. A drop kills the children that still run.
pub struct Cluster {
    /// Its directory.
    pub directory: Directory,
    /// Its composition.
    pub shape: Shape,
    /// `HOST:PORT` of the manager. A restart keeps it, because the nodes know the manager by it.
    pub manager_address: String,
    /// The manager, then the nodes.
    members: Vec<Member>,
}

impl Cluster {
    /// A cluster; nothing is started yet.
    pub fn new(directory: Directory, shape: Shape) -> Self {
        Cluster { manager_address: shape.listen.clone(), directory, shape, members: Vec::new() }
    }

    /// Starts the manager, then all nodes.
    ///
    /// # Errors
    /// A daemon cannot be started, or a stop was requested.
    pub fn start(&mut self, events: &Events, out: Out) -> Outcome {
        let (host, port) = port(&self.shape.listen, self.shape.nodes)?;
        self.manager_address = format!("{host}:{port}");
        let directory = self.directory.manager().display().to_string();
        let metrics = format!("{host}:{}", port_after(port, METRICS_OFFSET));
        let mut args = words(&["manager", "--dir", &directory, "--metrics", &metrics]);
        args.extend_from_slice(&self.shape.manager_args);
        self.add("manager".into(), args);
        if self.shape.restore {
            // Nodes that know their cluster serve their voters before a manager runs.
            self.manager_address = free_address(&host, port)?;
            self.start_nodes(&host, port, events)?;
            self.restore_manager(events, out)
        } else {
            self.launch("manager", &[], events)?;
            self.start_nodes(&host, port, events)
        }
    }

    fn add(&mut self, name: String, args: Vec<String>) {
        let command = DaemonCommand { log: self.directory.log(&name), name, args };
        self.members.push(Member { command, child: None, deaths: 0 });
    }

    fn start_nodes(&mut self, host: &str, port: u16, events: &Events) -> Outcome {
        for node in 1..=self.shape.nodes {
            let (name, step) = (format!("n{node}"), node as u16);
            let listen = format!("{host}:{}", port_after(port, step));
            let metrics = format!("{host}:{}", port_after(port, step + METRICS_OFFSET));
            let mut args = words(&["node", "--name", &name, "--host", &name, "--manager", &self.manager_address]);
            args.extend(words(&["--listen", &listen, "--metrics", &metrics]));
            if let Some(socket) = self.directory.socket(&name) {
                args.extend(words(&["--unix-socket", &socket.display().to_string()]));
            }
            for disk in 1..=self.shape.disks {
                let disk = self.directory.disk(node, disk);
                tessera_disk::create_dir_durably(&disk).at(&disk)?;
                args.extend(words(&["--disk", &disk.display().to_string()]));
            }
            args.extend_from_slice(&self.shape.node_args);
            self.add(name.clone(), args);
            self.launch(&name, &[], events)?;
        }
        Ok(())
    }

    /// Starts a child that does not run, with `more` arguments. If its port is taken, the failure names `up`'s own flag.
    ///
    /// # Errors
    /// As [`Child::start`].
    pub fn launch(&mut self, name: &str, more: &[String], events: &Events) -> Outcome {
        let is_manager = name == "manager";
        let listen = if is_manager { words(&["--listen", &self.manager_address]) } else { Vec::new() };
        let member = self.member(name)?;
        let args = [&member.command.args[..], &listen, more].concat();
        let child =
            Child::start(&DaemonCommand { args, ..member.command.clone() }, events).map_err(|mut failure| {
                if failure.message.contains("Address already in use") {
                    failure.message +=
                        "; `up` takes its ports from --listen: choose another there, or port 0 for any free ones";
                }
                failure
            })?;
        let address = child.announced.tcp().map(String::from);
        member.child = Some(child);
        if is_manager && let Some(address) = address {
            self.manager_address = address;
        }
        self.write_file()
    }

    /// Waits until the manager counts every node as up, and the metadata is on as many peers as it should be.
    ///
    /// # Errors
    /// Not all are up within `patience`, a child died, or a stop was requested.
    pub fn wait_ready(&mut self, events: &Events, patience: Duration) -> Outcome {
        let deadline = Instant::now() + patience;
        loop {
            let last = match remote::status_once(&self.manager_address) {
                Ok(status) => {
                    let is_up =
                        |name: &str| status.nodes.iter().any(|n| n.name == name && n.health == Health::Up as i32);
                    let names = self.members[1..].iter().map(|m| m.command.name.as_str());
                    let missing: Vec<&str> = names.filter(|name| !is_up(name)).collect();
                    let votes = status.peers.iter().filter(|peer| peer.votes).count();
                    match (missing.is_empty(), status.voters_wanted as usize) {
                        (true, wanted) if wanted > 0 && votes >= wanted => return Ok(()),
                        (true, wanted) => format!("the metadata is on {votes} of {wanted} peers"),
                        (false, _) => format!("{} not up yet; see their logs", missing.join(", ")),
                    }
                }
                Err(failure) => failure.message,
            };
            if let Some(death) = self.reap().first() {
                bail!(Exit::Failed, "{}", death.text());
            }
            if Instant::now() > deadline {
                bail!(Exit::Unavailable, "the store did not come up: {last}");
            }
            if let Ok(Event::Stop(why)) = events.receiver().recv_timeout(Duration::from_millis(50)) {
                return Err(child::interrupted(why));
            }
        }
    }

    /// Children that died since the last call.
    pub fn reap(&mut self) -> Vec<Death> {
        let mut deaths = Vec::new();
        for member in &mut self.members {
            let Some(status) = member.child.as_mut().and_then(Child::ended) else { continue };
            member.child = None;
            member.deaths += 1;
            deaths.push(Death {
                name: member.command.name.clone(),
                how: child::describe(&status),
                log: member.command.log.display().to_string(),
                last_line: child::last_line(&member.command.log),
                deaths: member.deaths,
            });
        }
        if !deaths.is_empty() {
            let _ = self.write_file();
        }
        deaths
    }

    /// Starts the manager on its empty directory. It joins the group that the voters of the running nodes are left of; if these are no
    /// majority, it restores the metadata from them, and what they have is printed.
    ///
    /// # Errors
    /// As [`Child::start`], or no node has a voter that knows the group.
    pub fn restore_manager(&mut self, events: &Events, out: Out) -> Outcome {
        let addresses = self.node_addresses();
        let from: Vec<Endpoint> = addresses.iter().cloned().map(Endpoint::Tcp).collect();
        let survey = tessera_manager::shell::survey(&from).map_err(restore::refused)?;
        let addresses = addresses.join(",");
        let more = match survey.has_majority() {
            true => words(&["--join", &addresses]),
            false => {
                restore::table(&survey).lines().iter().for_each(|line| out.note(line));
                words(&["--restore", "--from", &addresses, "--yes"])
            }
        };
        self.launch("manager", &more, events)
    }

    /// Kills (SIGKILL) the child `name`, as a crash would.
    ///
    /// # Errors
    /// There is no such child, or `cluster.json` cannot be written.
    pub fn kill(&mut self, name: &str) -> Outcome {
        let member = self.member(name)?;
        if let Some(mut child) = member.child.take() {
            child.kill();
        }
        self.write_file()
    }

    /// `HOST:PORT` of every running node.
    pub fn node_addresses(&self) -> Vec<String> {
        let running = self.members.iter().skip(1).filter_map(|m| m.child.as_ref());
        running.filter_map(|c| c.announced.tcp().map(String::from)).collect()
    }

    fn member(&mut self, name: &str) -> Outcome<&mut Member> {
        let found = self.members.iter_mut().find(|m| m.command.name == name);
        found.ok_or_else(|| failure!(Exit::NotFound, "no child is called {name}"))
    }

    /// Stops the manager first, while the voters still run, then all nodes at once.
    ///
    /// # Errors
    /// Some had to be killed. That loses nothing acknowledged (P9), but it should not happen.
    pub fn stop(&mut self, out: Out) -> Outcome {
        let mut killed = Vec::new();
        let managers = usize::from(!self.members.is_empty());
        let (manager, nodes) = self.members.split_at_mut(managers);
        for group in [manager, nodes] {
            group.iter_mut().filter_map(|m| m.child.as_mut()).for_each(Child::ask_to_stop);
            for member in group {
                if let Some(mut child) = member.child.take()
                    && !child.wait_or_kill(STOP_PATIENCE)
                {
                    let (name, seconds) = (&member.command.name, STOP_PATIENCE.as_secs());
                    out.note(format!("{name} did not stop within {seconds} s and was killed"));
                    killed.push(member.command.name.clone());
                }
            }
        }
        let _ = self.write_file();
        match killed.is_empty() {
            true => Ok(()),
            false => bail!(Exit::Failed, "had to be killed: {}", killed.join(", ")),
        }
    }

    /// The content of `cluster.json` and the output of `up --json`.
    pub fn describe(&self) -> Value {
        let one = |member: &Member| {
            let child = member.child.as_ref();
            json!({
                "name": member.command.name,
                "pid": child.map(Child::pid),
                "listen": child.map(|c| c.announced.listen.clone()),
                "metrics": child.and_then(|c| c.announced.metrics.clone()),
                "log": member.command.log,
            })
        };
        let mut members = self.members.iter().map(one);
        json!({
            "format": 1,
            "pid": std::process::id(),
            "release": env!("CARGO_PKG_VERSION"),
            "directory": self.directory.root(),
            "manager": members.next(),
            "nodes": members.collect::<Vec<_>>(),
            "disks_per_node": self.shape.disks,
        })
    }

    /// The addresses of all daemons, for people.
    pub fn table(&self) -> Table {
        let mut table = Table::new("lllr", &["daemon", "listens on", "metrics", "pid"]);
        for member in &self.members {
            let Some(child) = &member.child else { continue };
            let metrics = child.announced.metrics.as_ref().map(|m| format!("http://{m}/metrics"));
            let listen: Vec<_> = child.announced.listen.iter().filter(|a| !a.starts_with("unix:")).cloned().collect();
            table.row([
                member.command.name.clone(),
                listen.join(" "),
                metrics.unwrap_or_default(),
                child.pid().to_string(),
            ]);
        }
        table
    }

    fn write_file(&self) -> Outcome {
        self.directory.write_cluster_file(&self.describe())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.members.iter_mut().filter_map(|m| m.child.as_mut()).for_each(Child::kill);
    }
}

/// `port` plus `step`; port 0 (any) stays 0.
fn port_after(port: u16, step: u16) -> u16 {
    if port == 0 { 0 } else { port.saturating_add(step) }
}

/// The address itself; for port 0, one with a port that is free now.
fn free_address(host: &str, port: u16) -> Outcome<String> {
    if port != 0 {
        return Ok(format!("{host}:{port}"));
    }
    let found = std::net::TcpListener::bind((host, 0)).and_then(|listener| listener.local_addr());
    found.map(|address| address.to_string()).at(format!("--listen {host}:0"))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_do_not_exist_are_refused_before_anything_starts() {
        assert_eq!(port("127.0.0.1:7700", 8).unwrap(), ("127.0.0.1".into(), 7700));
        assert_eq!(port("127.0.0.1:0", 150).unwrap().1, 0);
        assert!(port("127.0.0.1:65500", 8).is_err());
        assert!(port("127.0.0.1:7700", 120).is_err());
        assert!(port("unix:/x", 8).is_err());
        assert!(port("nowhere", 8).unwrap_err().message.contains("HOST:PORT"));
    }
}
