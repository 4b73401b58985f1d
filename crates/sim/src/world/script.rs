//! Golden scripts: one command a line, with its result indented beneath it.
//!
//! ```text
//! cluster nodes=8 m=2
//! put a 20000 ec:4+2
//!   stored; manager: OpenWrite, Commit; nodes: 6 PutFragments
//! lose n3
//! settle
//!   ...
//! ```
//!
//! [`play`] runs the commands on a cluster of the real cores, on a network without faults, and returns the script with the
//! actual results. `tests/scripts.rs` compares the two; [`Player::execute`] lists the commands.

use super::{EPOCH_NS, Event, MS, QUIESCE_TIMEOUT_MS, World};
use crate::mutants::Mutant;
use crate::network::NetworkFaults;
use crate::plan::{Family, Fault, ManagerFault, Plan, Rng, Who};
use std::collections::BTreeMap;
use std::fmt::Write;
use tessera_wire::Health;

/// A manager that a script stops starts when the script says so.
const NEVER_MS: u64 = u64::MAX;
/// Lines of results start with this.
const INDENT: &str = "  ";

/// Plays a script, and returns it with the actual results in place of the written ones.
///
/// # Errors
/// The first line that is not a command, with its number.
pub fn play(script: &str) -> Result<String, String> {
    let mut player = Player::default();
    let mut out = String::new();
    for (number, line) in script.lines().enumerate().filter(|(_, line)| !line.starts_with(INDENT)) {
        let _ = writeln!(out, "{line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() || words[0].starts_with('#') {
            continue;
        }
        let output = player.execute(&words).map_err(|e| format!("line {}: {line}: {e}", number + 1))?;
        for output in output {
            let _ = writeln!(out, "{INDENT}{output}");
        }
    }
    Ok(out)
}

#[derive(Default)]
struct Player {
    world: Option<World>,
    /// Contents by name.
    files: BTreeMap<String, Vec<u8>>,
}

type Output = Result<Vec<String>, String>;

impl Player {
    fn execute(&mut self, words: &[&str]) -> Output {
        match *words {
            ["cluster", nodes, m] => self.cluster(after(nodes, "nodes=")?, after(m, "m=")?, "5"),
            ["cluster", nodes, m, voters] => {
                self.cluster(after(nodes, "nodes=")?, after(m, "m=")?, after(voters, "voters=")?)
            }
            ["put", name, size, redundancy] => {
                let bytes = content(name, parse(size)?);
                self.put(name, bytes, redundancy)
            }
            // A copy of another file, with one byte changed or none.
            ["copy", from, name, redundancy] => self.copy(from, name, None, redundancy),
            ["edit", from, name, offset, redundancy] => self.copy(from, name, Some(parse(offset)?), redundancy),
            ["get", name] => self.get(name),
            ["rm", name] => self.remove(name),
            ["kill", who] => self.inject(
                who,
                Fault::KillNode,
                Some(Fault::Manager { who: Who::Index(0), what: ManagerFault::Kill, back_ms: NEVER_MS }),
            ),
            ["poweroff", who] => self.inject(who, Fault::PowerOffNode, None),
            ["lose", who] => self.inject(
                who,
                Fault::LoseNode,
                Some(Fault::Manager { who: Who::Index(0), what: ManagerFault::Lose, back_ms: NEVER_MS }),
            ),
            ["start", who] => self.inject(who, Fault::StartNode, Some(Fault::StartManager(0))),
            ["pause", who] => self.inject(who, Fault::PauseNode, None),
            ["resume", who] => self.inject(who, Fault::ResumeNode, None),
            ["rot", who] => self.inject(who, Fault::Rot, None),
            ["drain", who] => self.inject(who, Fault::Drain, None),
            ["fill", who] => self.inject(who, Fault::FillDisk, None),
            ["gc"] => self.collect_garbage(),
            ["wait", seconds] => self.wait(parse(after_end(seconds, "s")?)?),
            ["settle"] => self.settle(),
            ["status"] => self.status(),
            _ => Err("no such command; crates/sim/src/world/script.rs has them all".into()),
        }
    }

    fn world(&mut self) -> Result<&mut World, String> {
        self.world.as_mut().ok_or_else(|| "there is no cluster yet".into())
    }

    fn cluster(&mut self, nodes: &str, m: &str, voters: &str) -> Output {
        // A plan without random parts.
        let plan = Plan {
            family: Family::Survivable,
            clocks_differ: false,
            snapshots_often: false,
            probes: false,
            many_chunks: false,
            slow_node: None,
            nodes: parse(nodes)?,
            managers: 1,
            max_voters: parse(voters)?,
            clients: 1,
            redundancy: "auto",
            m: parse(m)?,
            optimistic: false,
            operations: 0,
            piece_bytes: 3_000,
            endless_reader: false,
            network: NetworkFaults { min_delay_us: 100, max_delay_us: 100, ..NetworkFaults::default() },
            faults: Vec::new(),
            ..Plan::survivable(1)
        };
        let mut world = World::new(plan, Mutant::None, true);
        world.start_all().map_err(|v| v.fact)?;
        self.world = Some(world);
        self.files.clear();
        self.wait(1)?;
        self.status()
    }

    fn copy(&mut self, from: &str, name: &str, edited: Option<usize>, redundancy: &str) -> Output {
        let mut bytes = self.files.get(from).ok_or("that file was not put")?.clone();
        if let Some(at) = edited {
            *bytes.get_mut(at).ok_or("the file is shorter")? ^= 1;
        }
        self.put(name, bytes, redundancy)
    }

    fn put(&mut self, name: &str, bytes: Vec<u8>, redundancy: &str) -> Output {
        let world = self.world()?;
        world.clients[0].put(world.now_ns, name, &bytes, redundancy, &mut world.oracle);
        let output = world.operation("stored")?;
        if world.clients[0].errors.is_empty() {
            self.files.insert(name.into(), bytes);
        }
        Ok(output)
    }

    fn get(&mut self, name: &str) -> Output {
        let world = self.world()?;
        world.clients[0].read(world.now_ns, name);
        world.operation("read")
    }

    fn remove(&mut self, name: &str) -> Output {
        let world = self.world()?;
        world.clients[0].remove(world.now_ns, name, &mut world.oracle);
        let output = world.operation("removed")?;
        self.files.remove(name);
        Ok(output)
    }

    fn inject(&mut self, who: &str, node_fault: fn(usize) -> Fault, manager_fault: Option<Fault>) -> Output {
        let world = self.world()?;
        let fault = match (who, manager_fault) {
            ("manager", Some(fault)) => fault,
            (who, _) => {
                let node = parse(after(who, "n")?)?;
                (node < world.nodes.len()).then(|| node_fault(node)).ok_or("there is no such node")?
            }
        };
        world.inject(fault).map_err(|v| v.fact)?;
        Ok(Vec::new())
    }

    fn collect_garbage(&mut self) -> Output {
        let world = self.world()?;
        let deadline = world.now_ns + QUIESCE_TIMEOUT_MS * MS;
        let done = world.collect_garbage(deadline);
        world.take_log();
        Ok(vec![done.map_or_else(|v| v.fact, |()| "nothing is left over".into())])
    }

    fn wait(&mut self, seconds: i64) -> Output {
        let world = self.world()?;
        let until = world.now_ns + seconds * 1_000 * MS;
        world.run_until(until, |_| false).map_err(|v| format!("{} {}", v.promise, v.fact))?;
        world.take_log();
        Ok(Vec::new())
    }

    /// Waits until every chunk has all its fragments on live nodes.
    fn settle(&mut self) -> Output {
        let world = self.world()?;
        let deadline = world.now_ns + QUIESCE_TIMEOUT_MS * MS;
        world.run_until(deadline, |w| w.is_settled()).map_err(|v| format!("{} {}", v.promise, v.fact))?;
        world.take_log();
        self.status()
    }

    fn status(&mut self) -> Output {
        let world = self.world()?;
        let Some(status) = world.leader_mut().status() else { return Ok(vec!["no manager runs".into()]) };
        let up = status.nodes.iter().filter(|n| n.health() == Health::Up).count();
        let mut nodes = format!("{up} of {} nodes up", status.nodes.len());
        for node in status.nodes.iter().filter(|n| n.health() != Health::Up) {
            let _ = write!(nodes, ", {} {:?}", node.name, node.health());
        }
        let chunks = format!(
            "{} chunks: {} full, {} reduced, {} lost; {} fragments to repair, {} garbage",
            status.chunks,
            status.chunks_full,
            status.chunks_reduced,
            status.chunks_lost,
            status.fragments_to_repair,
            status.garbage_chunks
        );
        Ok(vec![nodes, chunks])
    }
}

impl World {
    /// Runs until the client has finished its operation; returns the result and the requests it sent.
    fn operation(&mut self, well: &str) -> Output {
        self.take_log();
        self.clients[0].errors.clear();
        self.push(self.now_ns, Event::ClientTick { client: 0, incarnation: self.clients[0].incarnation });
        let deadline = self.now_ns + 2 * QUIESCE_TIMEOUT_MS * MS;
        let judged = self.run_until(deadline, |w| w.clients[0].is_done());
        let result = match (judged, self.clients[0].errors.first()) {
            (Err(broken), _) => format!("BROKEN {}: {}", broken.promise, broken.fact),
            (Ok(()), Some((_, error))) => format!("failed: {error}"),
            (Ok(()), None) if !self.clients[0].is_done() => "does not end".into(),
            // The oracle has compared the bytes.
            (Ok(()), None) if well == "read" => {
                self.clients[0].found_bytes.map_or("no such file".into(), |len| format!("{len} bytes, equal"))
            }
            (Ok(()), None) => well.to_string(),
        };
        let (manager, nodes) = requests_in(&self.take_log());
        let mut output = result;
        if !manager.is_empty() {
            let _ = write!(output, "; manager: {manager}");
        }
        if !nodes.is_empty() {
            let _ = write!(output, "; nodes: {nodes}");
        }
        Ok(vec![output])
    }

    /// Events recorded since the last call.
    fn take_log(&mut self) -> Vec<String> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// The client's requests to the manager and to nodes: each kind once with its count, in the order of first appearance.
fn requests_in(log: &[String]) -> (String, String) {
    let mut counts: [Vec<(String, usize)>; 2] = Default::default();
    for line in log {
        let Some((_, call)) = line.split_once("Client(0) -> ") else { continue };
        let Some((whom, kind)) = call.rsplit_once(' ') else { continue };
        let list = &mut counts[usize::from(whom != "Manager")];
        match list.iter_mut().find(|(known, _)| known == kind) {
            Some((_, count)) => *count += 1,
            None => list.push((kind.to_string(), 1)),
        }
    }
    let text = |list: &Vec<(String, usize)>| {
        let each = list.iter().map(|(kind, n)| if *n == 1 { kind.clone() } else { format!("{n} {kind}") });
        each.collect::<Vec<_>>().join(", ")
    };
    (text(&counts[0]), text(&counts[1]))
}

/// Pseudo-random bytes that depend only on the name.
fn content(name: &str, size: usize) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(tessera_accel::checksum::crc32c(name.as_bytes())) ^ EPOCH_NS as u64);
    std::iter::repeat_with(|| rng.any().to_le_bytes()).flatten().take(size).collect()
}

fn parse<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word:?} is not a number"))
}

fn after<'a>(word: &'a str, prefix: &str) -> Result<&'a str, String> {
    word.strip_prefix(prefix).ok_or_else(|| format!("{word:?} should start with {prefix}"))
}

fn after_end<'a>(word: &'a str, suffix: &str) -> Result<&'a str, String> {
    word.strip_suffix(suffix).ok_or_else(|| format!("{word:?} should end with {suffix}"))
}
