//! Composition of a local store: how many daemons, with which arguments, and at which ports.

use super::directory::{Counts, Directory};
use crate::args::UpArgs;
use crate::exit::{Exit, Outcome, bail};
use std::path::PathBuf;
use tessera_net::Endpoint;

/// A daemon's metrics port is its own port plus this.
const METRICS_OFFSET: u16 = 100;

/// Composition of the store.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Numbers of daemons and disks.
    pub counts: Counts,
    /// Address of the first manager.
    pub listen: String,
    /// More arguments for every manager.
    pub manager_args: Vec<String>,
    /// More arguments for every node.
    pub node_args: Vec<String>,
    /// Let the managers join with empty directories what the nodes' voters keep.
    pub restore: bool,
}

impl Shape {
    /// The requested shape, or the one that the directory has.
    ///
    /// # Errors
    /// Fewer daemons or disks are requested than the directory holds: their data would be missing. Or the directory has
    /// nodes without any manager's database, and a new manager would not know them (P14).
    pub fn of(args: &UpArgs, directory: &Directory) -> Outcome<Shape> {
        let found = directory.found();
        let (managers, nodes) = directory.started_last();
        let new_nodes = if found.nodes + nodes == 0 { 8 } else { nodes };
        let pick = |requested: Option<u32>, found: u32, default: u32, what: &str, first: &str| match requested {
            Some(requested) if requested < found => bail!(
                Exit::Usage,
                "{} holds {found} {what}, --{what} {requested} would not start all; {first} first, or omit --{what}",
                directory.root().display()
            ),
            requested => Ok(requested.unwrap_or(default.max(found))),
        };
        let config = |file: &Option<PathBuf>| {
            file.iter().flat_map(|file| ["--config".into(), file.display().to_string()]).collect()
        };
        let take_out = "take the others out (tessera manager remove) and delete their directories";
        let counts = Counts {
            managers: pick(args.managers, found.managers, managers.max(1), "managers", take_out)?,
            nodes: pick(args.nodes, found.nodes, new_nodes, "nodes", "drain the others")?,
            disks: pick(args.disks, found.disks, 1, "disks", "drain the others")?,
        };
        let shape = Shape {
            restore: args.restore,
            counts,
            listen: args.listen.clone(),
            manager_args: config(&args.manager_config),
            node_args: config(&args.node_config),
        };
        shape.ports()?;
        directory.check_managers(&counts, args.restore)?;
        Ok(shape)
    }

    /// Ports of the daemons.
    ///
    /// # Errors
    /// `listen` is no `HOST:PORT`, or the ports after it do not suffice.
    pub fn ports(&self) -> Outcome<Ports> {
        let Counts { managers, nodes, .. } = self.counts;
        let listen = &self.listen;
        let Endpoint::Tcp(address) = crate::daemon::config::endpoint(listen)? else {
            bail!(Exit::Usage, "--listen {listen}: write HOST:PORT; nodes take the ports after it");
        };
        let (host, first) = address.rsplit_once(':').unwrap_or((&address, "0"));
        let first: u16 = first.parse().unwrap_or(0);
        let offset = u32::from(METRICS_OFFSET);
        let step = if managers > 1 { offset - 1 } else { nodes };
        let fits = u32::from(first) + step + offset <= u32::from(u16::MAX) && nodes + managers <= offset;
        if first != 0 && !fits {
            bail!(
                Exit::Usage,
                "--listen {listen}: {} and their metrics do not fit in the ports after it; choose a lower port, or 0 for any",
                self.counts.daemons()
            );
        }
        Ok(Ports { host: host.to_string(), first })
    }
}

/// The ports that the daemons take. A further daemon changes none of the others.
#[derive(Debug)]
pub struct Ports {
    host: String,
    /// Port of the first manager; 0: every daemon takes any free one.
    first: u16,
}

impl Ports {
    /// Addresses of manager `number` (from 1) and its metrics. Further managers count down from the metrics.
    pub fn manager(&self, number: u32) -> [String; 2] {
        self.after(if number == 1 { 0 } else { METRICS_OFFSET + 1 - number as u16 })
    }

    /// Addresses of node `number` (from 1) and its metrics.
    pub fn node(&self, number: u32) -> [String; 2] {
        self.after(number as u16)
    }

    fn after(&self, step: u16) -> [String; 2] {
        [step, step + METRICS_OFFSET].map(|step| match self.first {
            0 => format!("{}:0", self.host),
            first => format!("{}:{}", self.host, first.saturating_add(step)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(listen: &str, managers: u32, nodes: u32) -> Outcome<Ports> {
        let counts = Counts { managers, nodes, disks: 1 };
        let listen = listen.into();
        Shape { counts, listen, manager_args: Vec::new(), node_args: Vec::new(), restore: false }.ports()
    }

    #[test]
    fn ports_that_do_not_exist_are_refused_before_anything_starts() {
        assert!(ports("127.0.0.1:0", 1, 150).is_ok());
        assert!(ports("127.0.0.1:65500", 1, 8).is_err());
        assert!(ports("127.0.0.1:65400", 1, 8).is_ok());
        assert!(ports("127.0.0.1:65400", 2, 8).is_err());
        assert!(ports("127.0.0.1:7700", 1, 120).is_err());
        assert!(ports("unix:/x", 1, 8).is_err());
        assert!(ports("nowhere", 1, 8).unwrap_err().message.contains("HOST:PORT"));
    }

    #[test]
    fn every_daemon_has_ports_of_its_own() {
        let (managers, nodes) = (5, 95);
        let ports = ports("h:7700", managers, nodes).unwrap();
        assert_eq!(ports.manager(1), ["h:7700", "h:7800"]);
        assert_eq!(ports.manager(2), ["h:7799", "h:7899"]);
        assert_eq!(ports.node(8), ["h:7708", "h:7808"]);
        let all = (1..=managers).flat_map(|n| ports.manager(n)).chain((1..=nodes).flat_map(|n| ports.node(n)));
        assert_eq!(all.collect::<std::collections::BTreeSet<_>>().len(), 200);
    }
}
