//! The child processes of one local store.

use super::child::{self, Child, Recipe};
use super::directory::Directory;
use crate::args::UpArgs;
use crate::daemon::signals::{Event, Events};
use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use crate::remote;
use crate::term::Table;
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
    /// Rebuild the manager's database from the nodes.
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
        let pick = |asked: Option<u32>, found: u32, default: u32, what: &str| match asked {
            Some(asked) if asked < found => bail!(
                Exit::Usage,
                "{} holds {found} {what}, --{what} {asked} would leave some out; drain them first, or leave --{what} away",
                directory.root().display()
            ),
            asked => Ok(asked.unwrap_or(if found > 0 { found } else { default })),
        };
        let config = |file: &Option<PathBuf>| match file {
            Some(file) => vec!["--config".into(), file.display().to_string()],
            None => Vec::new(),
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

struct Member {
    recipe: Recipe,
    child: Option<Child>,
    deaths: u32,
}

/// A manager and its nodes. A drop kills the children that still run.
pub struct Cluster {
    directory: Directory,
    shape: Shape,
    manager_address: String,
    /// The manager, then the nodes.
    members: Vec<Member>,
}

impl Cluster {
    /// A cluster; nothing is started yet.
    pub fn new(directory: Directory, shape: Shape) -> Self {
        Cluster { manager_address: shape.listen.clone(), directory, shape, members: Vec::new() }
    }

    /// Its composition.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Its directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// `HOST:PORT` of the manager. A restart keeps it, because the nodes know the manager by it.
    pub fn manager_address(&self) -> &str {
        &self.manager_address
    }

    /// Starts the manager, then all nodes.
    ///
    /// # Errors
    /// A daemon cannot be started, or a stop was requested.
    pub fn start(&mut self, events: &Events) -> Outcome {
        let (host, port) = port(&self.shape.listen, self.shape.nodes)?;
        let recipe = self.manager_recipe(&host, port, &[]);
        self.members.push(Member { child: None, recipe, deaths: 0 });
        match self.shape.restore {
            false => {
                self.start_manager(&[], events)?;
                self.start_nodes(&host, port, events)?;
            }
            true => {
                // Nodes that know their cluster serve their log replica before a manager runs.
                self.manager_address = free_address(&host, port)?;
                set_flag(&mut self.members[0].recipe.args, "--listen", &self.manager_address);
                self.start_nodes(&host, port, events)?;
                let from = self.node_addresses().into_iter().flat_map(|address| ["--from".into(), address]);
                let more: Vec<String> = std::iter::once("--restore".into()).chain(from).collect();
                self.start_manager(&more, events)?;
            }
        }
        self.write_file()
    }

    /// Starts a child. If its port is taken, the failure names `up`'s own flag.
    fn start_child(recipe: &Recipe, events: &Events) -> Outcome<Child> {
        Child::start(recipe, events).map_err(|failure| match failure.message.contains("Address already in use") {
            true => Failure {
                message: format!(
                    "{}; `up` takes its ports from --listen: choose another there, or port 0 for any free ones",
                    failure.message
                ),
                ..failure
            },
            false => failure,
        })
    }

    fn start_manager(&mut self, more: &[String], events: &Events) -> Outcome {
        self.restart_manager_with(more, events)?;
        let manager = &mut self.members[0];
        if let Some(address) = manager.child.as_ref().and_then(|c| c.announced.tcp()) {
            self.manager_address = address.to_string();
        }
        set_flag(&mut manager.recipe.args, "--listen", &self.manager_address);
        Ok(())
    }

    fn start_nodes(&mut self, host: &str, port: u16, events: &Events) -> Outcome {
        for node in 1..=self.shape.nodes {
            let recipe = self.node_recipe(host, port, node)?;
            self.members.push(Member { child: Some(Self::start_child(&recipe, events)?), recipe, deaths: 0 });
        }
        Ok(())
    }

    fn manager_recipe(&self, host: &str, port: u16, more: &[String]) -> Recipe {
        let mut args: Vec<String> = ["manager", "--dir"].map(String::from).to_vec();
        args.push(self.directory.manager().display().to_string());
        args.extend(["--listen".into(), format!("{host}:{port}")]);
        args.extend(["--metrics".into(), format!("{host}:{}", behind(port, METRICS_OFFSET))]);
        args.extend_from_slice(&self.shape.manager_args);
        args.extend_from_slice(more);
        Recipe { name: "manager".into(), args, log: self.directory.log("manager") }
    }

    fn node_recipe(&self, host: &str, port: u16, node: u32) -> Outcome<Recipe> {
        let name = format!("n{node}");
        let step = node as u16;
        let mut args: Vec<String> = ["node", "--name", &name, "--host", &name].map(String::from).to_vec();
        args.extend(["--manager".into(), self.manager_address.clone()]);
        args.extend(["--listen".into(), format!("{host}:{}", behind(port, step))]);
        args.extend(["--metrics".into(), format!("{host}:{}", behind(port, step + METRICS_OFFSET))]);
        if let Some(socket) = self.directory.socket(&name) {
            args.extend(["--unix-socket".into(), socket.display().to_string()]);
        }
        for disk in 1..=self.shape.disks {
            let disk = self.directory.disk(node, disk);
            std::fs::create_dir_all(&disk).at(&disk)?;
            args.extend(["--disk".into(), disk.display().to_string()]);
        }
        args.extend_from_slice(&self.shape.node_args);
        Ok(Recipe { log: self.directory.log(&name), name, args })
    }

    /// Waits until the manager counts every node as up.
    ///
    /// # Errors
    /// Not all are up within `patience`, a child died, or a stop was requested.
    pub fn wait_ready(&mut self, events: &Events, patience: Duration) -> Outcome {
        let deadline = Instant::now() + patience;
        loop {
            let last = match remote::status_once(&self.manager_address) {
                Ok(status) => {
                    let up: Vec<&str> =
                        status.nodes.iter().filter(|n| n.health == Health::Up as i32).map(|n| &*n.name).collect();
                    let missing = self.members[1..].iter().map(|m| &m.recipe.name).filter(|n| !up.contains(&&***n));
                    let missing: Vec<String> = missing.cloned().collect();
                    if missing.is_empty() {
                        return Ok(());
                    }
                    format!("{} not up yet; see their logs", missing.join(", "))
                }
                Err(failure) => failure.message,
            };
            if let Some(death) = self.reap().into_iter().next() {
                let words = death.last_line.map(|l| format!(": {l}")).unwrap_or_default();
                let message = format!("{} died ({}){words} (log {})", death.name, death.how, death.log);
                return Err(Failure::new(Exit::Failed, message));
            }
            if Instant::now() > deadline {
                let message = format!("the store did not come up: {last}");
                return Err(Failure::new(Exit::Unavailable, message));
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
                name: member.recipe.name.clone(),
                how: child::describe(&status),
                log: member.recipe.log.display().to_string(),
                last_line: child::last_line(&member.recipe.log),
                deaths: member.deaths,
            });
        }
        if !deaths.is_empty() {
            let _ = self.write_file();
        }
        deaths
    }

    /// Number of deaths of the child `name`.
    pub fn deaths(&self, name: &str) -> u32 {
        self.members.iter().find(|m| m.recipe.name == name).map_or(0, |m| m.deaths)
    }

    /// Starts a dead child again.
    ///
    /// # Errors
    /// As [`Child::start`].
    pub fn restart(&mut self, name: &str, events: &Events) -> Outcome {
        let member = self.member(name)?;
        member.child = Some(Child::start(&member.recipe, events)?);
        self.write_file()
    }

    /// Starts the manager again, this time with `more` arguments.
    ///
    /// # Errors
    /// As [`Child::start`].
    pub fn restart_manager_with(&mut self, more: &[String], events: &Events) -> Outcome {
        let member = self.member("manager")?;
        let recipe = Recipe { args: [&member.recipe.args[..], more].concat(), ..member.recipe.clone() };
        member.child = Some(Self::start_child(&recipe, events)?);
        self.write_file()
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
        let found = self.members.iter_mut().find(|m| m.recipe.name == name);
        found.ok_or_else(|| failure!(Exit::NotFound, "no child is called {name}"))
    }

    /// Stops the manager first, while its log replicas still run, then all nodes at once.
    ///
    /// # Errors
    /// Some had to be killed. That loses nothing acknowledged (P9), but it should not happen.
    pub fn stop(&mut self, tell: &mut dyn FnMut(String)) -> Outcome {
        let mut stubborn = Vec::new();
        let managers = usize::from(!self.members.is_empty());
        let (manager, nodes) = self.members.split_at_mut(managers);
        for group in [manager, nodes] {
            group.iter_mut().filter_map(|m| m.child.as_mut()).for_each(Child::ask_to_stop);
            for member in group {
                if let Some(mut child) = member.child.take()
                    && !child.wait_or_kill(STOP_PATIENCE)
                {
                    tell(format!(
                        "{} did not stop within {} s and was killed",
                        member.recipe.name,
                        STOP_PATIENCE.as_secs()
                    ));
                    stubborn.push(member.recipe.name.clone());
                }
            }
        }
        let _ = self.write_file();
        match stubborn.is_empty() {
            true => Ok(()),
            false => bail!(Exit::Failed, "had to be killed: {}", stubborn.join(", ")),
        }
    }

    /// The content of `cluster.json` and the output of `up --json`.
    pub fn describe(&self) -> Value {
        let one = |member: &Member| {
            let child = member.child.as_ref();
            json!({
                "name": member.recipe.name,
                "pid": child.map(Child::pid),
                "listen": child.map(|c| c.announced.listen.clone()),
                "metrics": child.and_then(|c| c.announced.metrics.clone()),
                "log": member.recipe.log,
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
                member.recipe.name.clone(),
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
fn behind(port: u16, step: u16) -> u16 {
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

fn set_flag(args: &mut [String], flag: &str, value: &str) {
    if let Some(at) = args.iter().position(|a| a == flag)
        && let Some(slot) = args.get_mut(at + 1)
    {
        *slot = value.to_string();
    }
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
