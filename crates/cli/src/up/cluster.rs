//! The child processes of one local store.

use super::child::{self, Child, DaemonCommand};
use super::directory::{Counts, Directory, manager_name};
use super::shape::{Ports, Shape};
use crate::daemon::restore;
use crate::daemon::signals::{Event, Events};
use crate::exit::{At, Exit, Outcome, bail, failure};
use crate::remote;
use crate::term::{Out, Table};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tessera_net::Endpoint;
use tessera_wire::Health;
use tessera_wire::meta::{ClusterStatus, PeerStatus};

/// A daemon gets this long to end after SIGTERM.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

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
    /// `HOST:PORT` of a manager. A restart keeps it, because nodes and clients know the manager by it.
    listen: Option<String>,
    child: Option<Child>,
    deaths: u32,
}

impl Member {
    fn new(command: DaemonCommand, listen: Option<String>) -> Self {
        Member { command, listen, child: None, deaths: 0 }
    }
}

/// Managers and nodes. A drop kills the children that still run.
pub struct Cluster {
    /// Its directory.
    pub directory: Directory,
    /// Its composition.
    pub shape: Shape,
    managers: Vec<Member>,
    nodes: Vec<Member>,
}

impl Cluster {
    /// A cluster; nothing is started yet.
    pub fn new(directory: Directory, shape: Shape) -> Self {
        Cluster { directory, shape, managers: Vec::new(), nodes: Vec::new() }
    }

    /// Starts the managers and all nodes.
    ///
    /// # Errors
    /// A daemon cannot be started, or a stop was requested.
    pub fn start(&mut self, events: &Events, out: Out) -> Outcome {
        let (ports, restore) = (self.shape.ports()?, self.shape.restore);
        (1..=self.shape.counts.managers).try_for_each(|number| self.add_manager(number, &ports))?;
        if restore {
            let mut managers = self.managers.iter_mut().filter_map(|manager| manager.listen.as_mut());
            managers.try_for_each(|listen| free_address(listen).map(|free| *listen = free))?;
        } else {
            self.start_managers(events)?;
        }
        // Nodes that know their cluster serve their voters before a manager leads. A new one waits for that manager, which may need
        // the votes of all others.
        let (known, new) = self.add_nodes(&ports)?;
        known.iter().try_for_each(|name| self.launch(name, &[], events))?;
        if restore {
            self.restore_managers(events, out)?;
        }
        new.iter().try_for_each(|name| self.launch(name, &[], events))
    }

    fn add_manager(&mut self, number: u32, ports: &Ports) -> Outcome {
        let (name, directory) = (manager_name(number), self.directory.manager(number));
        tessera_disk::create_dir_durably(&directory).at(&directory)?;
        let [listen, metrics] = ports.manager(number);
        let mut args = words(&["manager", "--dir", &directory.display().to_string(), "--metrics", &metrics]);
        if number > 1 {
            // The first has the machine's name.
            args.extend(words(&["--host", &name]));
        }
        args.extend_from_slice(&self.shape.manager_args);
        self.managers.push(Member::new(self.command(name, args), Some(listen)));
        Ok(())
    }

    fn command(&self, name: String, args: Vec<String>) -> DaemonCommand {
        DaemonCommand { log: self.directory.log(&name), name, args }
    }

    /// Starts the managers that do not run: those that have a database first, because the others join what runs. In a new
    /// store the first manager has nothing to join.
    fn start_managers(&mut self, events: &Events) -> Outcome {
        let missing = (1..).zip(&self.managers).filter(|(_, manager)| manager.child.is_none());
        let (having, empty): (Vec<u32>, Vec<u32>) =
            missing.map(|(number, _)| number).partition(|number| self.directory.has_database(*number));
        for number in having.into_iter().chain(empty) {
            let running = self.addresses().join(",");
            let join = if running.is_empty() { Vec::new() } else { words(&["--join", &running]) };
            self.launch(&manager_name(number), &join, events)?;
        }
        Ok(())
    }

    /// Makes the directories of the nodes. Returns the names of those that know their cluster, and of those whose disks are new or lost.
    fn add_nodes(&mut self, ports: &Ports) -> Outcome<(Vec<String>, Vec<String>)> {
        let Counts { nodes, disks, .. } = self.shape.counts;
        let (known, new): (Vec<u32>, Vec<u32>) =
            (1..=nodes).partition(|node| self.directory.cluster_of(*node, disks).is_some());
        for node in 1..=nodes {
            let name = node_name(node);
            let [listen, metrics] = ports.node(node);
            let mut args = words(&["node", "--name", &name, "--host", &name, "--manager", &self.manager_list()]);
            args.extend(words(&["--listen", &listen, "--metrics", &metrics]));
            if let Some(socket) = self.directory.socket(&name) {
                args.extend(words(&["--unix-socket", &socket.display().to_string()]));
            }
            for disk in 1..=disks {
                let disk = self.directory.disk(node, disk);
                tessera_disk::create_dir_durably(&disk).at(&disk)?;
                args.extend(words(&["--disk", &disk.display().to_string()]));
            }
            args.extend_from_slice(&self.shape.node_args);
            self.nodes.push(Member::new(self.command(name, args), None));
        }
        let names = |nodes: Vec<u32>| nodes.into_iter().map(node_name).collect();
        Ok((names(known), names(new)))
    }

    /// Starts a child that does not run, with `more` arguments. If its port is taken, the failure names `up`'s own flag.
    ///
    /// # Errors
    /// As [`Child::start`].
    pub fn launch(&mut self, name: &str, more: &[String], events: &Events) -> Outcome {
        let member = self.member(name)?;
        let listen = member.listen.iter().flat_map(|address| words(&["--listen", address])).collect::<Vec<_>>();
        let args = [&member.command.args[..], &listen, more].concat();
        let child =
            Child::start(&DaemonCommand { args, ..member.command.clone() }, events).map_err(|mut failure| {
                if failure.message.contains("Address already in use") {
                    failure.message +=
                        "; `up` takes its ports from --listen: choose another there, or port 0 for any free ones";
                }
                failure
            })?;
        if let (Some(listen), Some(address)) = (&mut member.listen, child.announced.tcp()) {
            *listen = address.to_string();
        }
        member.child = Some(child);
        self.write_file()
    }

    /// Waits until the manager that leads counts every running node as up, and the metadata is on as many peers as it should be.
    ///
    /// # Errors
    /// Not all are up within `patience`, a child died, or a stop was requested.
    pub fn wait_ready(&mut self, events: &Events, patience: Duration) -> Outcome {
        self.wait_for(events, patience, |cluster, status| {
            let is_up = |name: &str| status.nodes.iter().any(|n| n.name == name && n.health == Health::Up as i32);
            let running = cluster.nodes.iter().filter(|node| node.child.is_some());
            let names = running.map(|node| node.command.name.as_str());
            let missing: Vec<&str> = names.filter(|name| !is_up(name)).collect();
            match missing.is_empty() {
                true => enough_votes(status, |_| true),
                false => Err(format!("{} not up yet; see their logs", missing.join(", "))),
            }
        })
    }

    /// Waits until as many peers that keep the metadata are up as there should be.
    ///
    /// # Errors
    /// As [`Cluster::wait_ready`].
    pub fn wait_voters(&mut self, events: &Events, patience: Duration) -> Outcome {
        self.wait_for(events, patience, |_, status| enough_votes(status, |peer| peer.is_up))
    }

    /// Waits until `check` takes the state that the leading manager reports. Its error says what is missing.
    fn wait_for(
        &mut self,
        events: &Events,
        patience: Duration,
        check: impl Fn(&Cluster, &ClusterStatus) -> Result<(), String>,
    ) -> Outcome {
        let deadline = Instant::now() + patience;
        loop {
            let checked = match self.leader() {
                Ok((_, status)) => check(self, &status),
                Err(failure) => Err(failure.message),
            };
            let Err(missing) = checked else { return Ok(()) };
            if let Some(death) = self.reap().first() {
                bail!(Exit::Failed, "{}", death.text());
            }
            if Instant::now() > deadline {
                bail!(Exit::Unavailable, "the store did not come up: {missing}");
            }
            if let Ok(Event::Stop(why)) = events.receiver().recv_timeout(Duration::from_millis(50)) {
                return Err(child::interrupted(why));
            }
        }
    }

    /// Children that died since the last call.
    pub fn reap(&mut self) -> Vec<Death> {
        let mut deaths = Vec::new();
        for member in self.managers.iter_mut().chain(&mut self.nodes) {
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

    /// Starts the managers on their empty directories. The first joins the group that the voters of the running nodes are left of;
    /// if these are no majority, it restores the metadata from them, and what they have is printed. The others join it.
    ///
    /// # Errors
    /// As [`Child::start`], or no node has a voter that knows the group.
    pub fn restore_managers(&mut self, events: &Events, out: Out) -> Outcome {
        let addresses = self.addresses();
        let from: Vec<Endpoint> = addresses.iter().cloned().map(Endpoint::Tcp).collect();
        let survey = tessera_manager::shell::survey(&from).map_err(restore::refused)?;
        if !survey.has_majority() {
            restore::table(&survey).lines().iter().for_each(|line| out.note(line));
            let restore = words(&["--restore", "--from", &addresses.join(","), "--yes"]);
            self.launch(&manager_name(1), &restore, events)?;
        }
        self.start_managers(events)
    }

    /// Name of the manager that leads, and the state that it reports.
    ///
    /// # Errors
    /// No manager answers and leads.
    pub fn leader(&self) -> Outcome<(String, ClusterStatus)> {
        let mut last = failure!(Exit::Unavailable, "no manager runs");
        for manager in self.managers.iter().filter(|manager| manager.child.is_some()) {
            match remote::status_once(manager.listen.as_deref().unwrap_or_default()) {
                Ok(status) => return Ok((manager.command.name.clone(), status)),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// `HOST:PORT` of every manager, with commas between them.
    pub fn manager_list(&self) -> String {
        let addresses: Vec<&str> = self.managers.iter().filter_map(|manager| manager.listen.as_deref()).collect();
        addresses.join(",")
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

    /// Number of nodes that run.
    pub fn running_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| node.child.is_some()).count()
    }

    /// `HOST:PORT` of every daemon that runs.
    fn addresses(&self) -> Vec<String> {
        let running = self.members().filter_map(|member| member.child.as_ref());
        running.filter_map(|child| child.announced.tcp().map(String::from)).collect()
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.managers.iter().chain(&self.nodes)
    }

    fn member(&mut self, name: &str) -> Outcome<&mut Member> {
        let found = self.managers.iter_mut().chain(&mut self.nodes).find(|m| m.command.name == name);
        found.ok_or_else(|| failure!(Exit::NotFound, "no child is called {name}"))
    }

    /// Stops the managers first, while the voters still run, then all nodes at once.
    ///
    /// # Errors
    /// Some had to be killed. That loses nothing acknowledged (P9), but it should not happen.
    pub fn stop(&mut self, out: Out) -> Outcome {
        let mut killed = Vec::new();
        for group in [&mut self.managers, &mut self.nodes] {
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
        json!({
            "format": 2,
            "pid": std::process::id(),
            "release": env!("CARGO_PKG_VERSION"),
            "directory": self.directory.root(),
            "managers": self.managers.iter().map(one).collect::<Vec<_>>(),
            "nodes": self.nodes.iter().map(one).collect::<Vec<_>>(),
            "disks_per_node": self.shape.counts.disks,
        })
    }

    /// The addresses of all daemons, for people.
    pub fn table(&self) -> Table {
        let mut table = Table::new("lllr", &["daemon", "listens on", "metrics", "pid"]);
        for member in self.members() {
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
        self.managers.iter_mut().chain(&mut self.nodes).filter_map(|m| m.child.as_mut()).for_each(Child::kill);
    }
}

/// Whether as many of the peers that count vote as should.
fn enough_votes(status: &ClusterStatus, counts: impl Fn(&PeerStatus) -> bool) -> Result<(), String> {
    let votes = status.peers.iter().filter(|peer| peer.votes && counts(peer)).count();
    match status.voters_wanted as usize {
        wanted if wanted > 0 && votes >= wanted => Ok(()),
        wanted => Err(format!("the metadata is on {votes} of {wanted} peers")),
    }
}

fn node_name(node: u32) -> String {
    format!("n{node}")
}

/// The address itself; for port 0, one with a port that is free now.
fn free_address(address: &str) -> Outcome<String> {
    if !address.ends_with(":0") {
        return Ok(address.to_string());
    }
    let found = std::net::TcpListener::bind(address).and_then(|listener| listener.local_addr());
    found.map(|address| address.to_string()).at(format!("--listen {address}"))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}
