//! Packs of small files of which little is left are written anew, and small files that are cold move into packs. Each node does its share,
//! as a client of the cluster.

use crate::exit::{At, Outcome};
use std::time::Duration;
use tessera_client::{Cancel, Client, Compacted, Error, MovedFiles, Options, Share};
use tessera_node::NodeOptions;
use tessera_wire::meta::GetMap;
use tessera_wire::{Health, NodeInfo};

/// What a node needs to do its share.
pub struct Upkeep {
    managers: String,
    /// The node's own name.
    name: String,
    options: Options,
    every: Duration,
    living_percent: u32,
    pack_after: Duration,
}

/// The upkeep of packs by a node with these options, if it is to do any.
pub fn prepare(node: &NodeOptions) -> Option<Upkeep> {
    let every_ms = node.config.rewrite_packs_every_ms;
    (every_ms > 0).then(|| Upkeep {
        managers: node.managers.to_string(),
        name: node.name.clone(),
        options: Options {
            host: node.host.clone(),
            write_window_bytes: 8 << 20,
            chunk_cache_bytes: 8 << 20,
            worker_threads: 1,
            ..Options::default()
        },
        every: Duration::from_millis(every_ms),
        living_percent: node.config.rewrite_living_percent.into(),
        pack_after: Duration::from_millis(node.config.pack_after_ms),
    })
}

impl Upkeep {
    /// Starts a thread that lives as long as the process.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(self) -> Outcome {
        let run = move || {
            loop {
                // Nodes that started together ask the manager one after the other.
                std::thread::sleep(self.every.mul_f64(rand::random_range(0.75..1.25)));
                match self.run() {
                    Ok((done, moved)) => {
                        if done.packs + moved.files + moved.contents > 0 {
                            tracing::info!(
                                packs = done.packs,
                                files = moved.files,
                                contents = moved.contents,
                                "packs were written anew, and files and contents of tiny files moved into packs"
                            );
                        }
                        if let Some(error) = done.failed.or(moved.failed) {
                            tracing::warn!(%error, "not all packs were written; the rest is tried later");
                        }
                    }
                    Err(error) => tracing::warn!(%error, "packs were not written; that is tried later"),
                }
            }
        };
        std::thread::Builder::new().name("packs".into()).spawn(run).at("cannot start a thread")?;
        Ok(())
    }

    /// Does this node's share.
    fn run(&self) -> Result<(Compacted, MovedFiles), Error> {
        let client = Client::connect(&self.managers, self.options.clone())?;
        let nodes = client.ask(&GetMap { known_version: 0, pg_ids: Vec::new(), all_nodes: true })?.nodes;
        let done = match share(&nodes, &self.name) {
            Some((own, all)) => {
                let cancel = Cancel::default();
                let done = client.compact_packs(self.living_percent, |pack| pack % all == own, &cancel)?;
                (done, client.move_into_packs(self.pack_after, Share { own, all }, &cancel)?)
            }
            None => Default::default(),
        };
        client.close(Duration::from_secs(5));
        Ok(done)
    }
}

/// The place of a node among those that are up, and their number.
fn share(nodes: &[NodeInfo], name: &str) -> Option<(u64, u64)> {
    let mut up: Vec<&str> =
        nodes.iter().filter(|node| node.health() == Health::Up).map(|node| node.name.as_str()).collect();
    up.sort_unstable();
    let own = up.iter().position(|other| *other == name)?;
    Some((own as u64, up.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pack_is_the_share_of_one_node_that_is_up() {
        let node =
            |name: &str, health: Health| NodeInfo { name: name.into(), health: health.into(), ..NodeInfo::default() };
        let nodes = [node("b", Health::Up), node("c", Health::Down), node("a", Health::Up)];
        assert_eq!((share(&nodes, "a"), share(&nodes, "b"), share(&nodes, "c")), (Some((0, 2)), Some((1, 2)), None));
    }
}
