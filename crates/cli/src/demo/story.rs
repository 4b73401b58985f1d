//! The steps of the demo: store, store an edited copy, lose two nodes, read, repair, lose the manager, restore, read.

use super::compare::Compare;
use super::edits::Edits;
use crate::args::Common;
use crate::daemon::signals::{Event, Events};
use crate::exit::{At, Exit, Outcome, bail};
use crate::files::local::{self, Kind, LocalEntry};
use crate::files::pool;
use crate::remote::{Store, StoreOptions};
use crate::term::{Out, Progress, Table, units};
use crate::up::child;
use crate::up::cluster::Cluster;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};
use tessera_client::path::StorePath;
use tessera_client::{Sink, Source};
use tessera_wire::Health;

/// Files in transfer at once.
const JOBS: usize = 16;
/// A repair without progress for this long has failed.
const REPAIR_PATIENCE: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A row of the table.
#[derive(Default)]
struct Step {
    what: String,
    files: u64,
    bytes: u64,
    /// Whether the bytes were moved in this time, so that a rate makes sense.
    moved: bool,
    time: Duration,
    result: String,
    facts: Value,
}

struct Story<'a> {
    cluster: &'a mut Cluster,
    events: &'a Events,
    out: Out,
    files: Vec<LocalEntry>,
    bytes: u64,
    steps: Vec<Step>,
    different: u64,
}

/// One of the two stored trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tree {
    Original,
    Edited,
}

impl Tree {
    fn root(self) -> &'static [u8] {
        if self == Tree::Original { b"original" } else { b"edited" }
    }
}

/// Runs all steps.
///
/// # Errors
/// A step failed, or a byte differs.
pub fn tell(cluster: &mut Cluster, source: &Path, events: &Events, out: Out) -> Outcome {
    let (found, failures) = local::walk(source)?;
    failures.iter().for_each(|f| out.warn(f));
    let files: Vec<LocalEntry> = found.into_iter().filter(|f| matches!(f.kind, Kind::File(_))).collect();
    if files.is_empty() {
        bail!(Exit::Usage, "{}: no files to store", source.display());
    }
    let bytes = files.iter().map(LocalEntry::len_bytes).sum();
    let mut story = Story { cluster, events, out, files, bytes, steps: Vec::new(), different: 0 };
    let outcome = story.plot();
    story.print(&outcome)?;
    outcome?;
    match story.different {
        0 => Ok(()),
        n => bail!(Exit::Corrupt, "{} bytes differ from what was stored", units::count(n)),
    }
}

impl Story<'_> {
    fn plot(&mut self) -> Outcome {
        let nodes = self.cluster.shape.nodes;
        self.out.note(format!(
            "Starting a manager and {nodes} nodes; storing {} files, {} ...",
            units::count(self.files.len() as u64),
            units::bytes(self.bytes)
        ));
        self.cluster.start(self.events)?;
        self.cluster.wait_ready(self.events, Duration::from_secs(60))?;
        self.store(Tree::Original, "store the files")?;
        self.store(Tree::Edited, "store an edited copy")?;
        self.kill(&["n2", "n5"])?;
        self.read_all("read everything back")?;
        self.repair()?;
        self.read_all("read everything again")?;
        self.lose_manager()?;
        self.read_all("read everything once more")
    }

    fn connect(&self) -> Outcome<Store> {
        let output = Out { quiet: true, json: false };
        Store::connect(&Common::new(&self.cluster.manager_address, 60, output))
    }

    fn store(&mut self, tree: Tree, what: &str) -> Outcome {
        let store = self.connect()?;
        let before = store.status()?;
        let depths =
            |file: &LocalEntry| (0..file.names.len().max(1)).map(|depth| file.names[..depth].to_vec()).collect();
        let directories: BTreeSet<Vec<Vec<u8>>> = self.files.iter().flat_map::<Vec<_>, _>(depths).collect();
        for names in directories {
            store.mkdir(&path(tree, &names)?, true)?;
        }
        let started = Instant::now();
        let progress = Progress::bytes(self.out, "put", Some(self.bytes));
        let work = |file: &LocalEntry| -> Outcome {
            let options = StoreOptions { mode: 0o644, ..StoreOptions::default() };
            let (mut reader, len) = open(tree, file)?;
            let source = Source::Reader { reader: &mut reader, len_bytes: Some(len) };
            store.store(&path(tree, &file.names)?, source, &options, &|n| progress.add(n)).map(drop)
        };
        let ran = pool::run(self.files.iter().collect(), |f| f.len_bytes(), JOBS, work, |f| progress.warn(f));
        progress.finish();
        ran.outcome()?;
        let time = started.elapsed();
        let after = store.status()?;
        let logical = after.logical_bytes.saturating_sub(before.logical_bytes);
        let new = after.unique_bytes.saturating_sub(before.unique_bytes);
        let on_disk = after.stored_bytes.saturating_sub(before.stored_bytes);
        self.steps.push(Step {
            what: what.into(),
            files: self.files.len() as u64,
            bytes: logical,
            moved: true,
            time,
            result: format!(
                "{} new, {} saved by deduplication; {} on disks",
                units::bytes(new),
                units::percent(logical.saturating_sub(new), logical),
                units::bytes(on_disk)
            ),
            facts: json!({"logical_bytes": logical, "new_bytes": new, "stored_bytes": on_disk}),
        });
        Ok(())
    }

    fn kill(&mut self, names: &[&str]) -> Outcome {
        let started = Instant::now();
        names.iter().try_for_each(|name| self.cluster.kill(name))?;
        self.steps.push(Step {
            what: format!("kill -9 {}", names.join(" and ")),
            time: started.elapsed(),
            result: format!("{} of {} nodes are left", self.cluster.node_addresses().len(), self.cluster.shape.nodes),
            facts: json!({"killed": names}),
            ..Step::default()
        });
        Ok(())
    }

    /// Reads both trees and compares every byte with the stored ones.
    fn read_all(&mut self, what: &str) -> Outcome {
        let store = self.connect()?;
        let started = Instant::now();
        let progress = Progress::bytes(self.out, "compare", Some(self.bytes * 2));
        let sums = Mutex::new((0, 0));
        let work = |(tree, file): (Tree, &LocalEntry)| -> Outcome {
            let (reader, _) = open(tree, file)?;
            let mut compare = Compare::new(reader);
            store.fetch(&path(tree, &file.names)?, Sink::Writer(&mut compare), None, None, &|n| progress.add(n))?;
            let (compared, different) = compare.finish().at(&file.path)?;
            let mut sums = sums.lock();
            *sums = (sums.0 + compared, sums.1 + different);
            match different {
                0 => Ok(()),
                n => bail!(Exit::Corrupt, "{}: {n} bytes differ", path(tree, &file.names)?),
            }
        };
        let both = [Tree::Original, Tree::Edited].into_iter();
        let jobs = both.flat_map(|tree| self.files.iter().map(move |f| (tree, f))).collect();
        let ran = pool::run(jobs, |(_, f)| f.len_bytes(), JOBS, work, |f| progress.warn(f));
        progress.finish();
        let (compared, different) = sums.into_inner();
        self.different += different;
        ran.outcome()?;
        self.steps.push(Step {
            what: what.into(),
            files: self.files.len() as u64 * 2,
            bytes: compared,
            moved: true,
            time: started.elapsed(),
            result: format!("{} bytes compared, {different} differ", units::count(compared)),
            facts: json!({"compared_bytes": compared, "different_bytes": different}),
        });
        Ok(())
    }

    /// Waits until every chunk has all its fragments again.
    fn repair(&mut self) -> Outcome {
        let store = self.connect()?;
        let started = Instant::now();
        let progress = Progress::items(self.out, "repair");
        let (mut most, mut last, mut moved) = (0, (u64::MAX, 0), Instant::now());
        let status = loop {
            let status = store.status()?;
            let out_nodes = status.nodes.iter().filter(|n| n.health == Health::Out as i32).count();
            most = most.max(status.chunks_reduced);
            progress.set(most - status.chunks_reduced, most);
            progress.message("chunks at full redundancy");
            if out_nodes == 2 && status.chunks_reduced == 0 && status.members_backfilling == 0 {
                break status;
            }
            let now = (status.chunks_reduced, status.fragments_repaired);
            if now != last {
                (last, moved) = (now, Instant::now());
            }
            if moved.elapsed() > REPAIR_PATIENCE {
                bail!(Exit::Failed, "repair stands still: {} chunks reduced", now.0);
            }
            if let Ok(Event::Stop(why)) = self.events.receiver().recv_timeout(LOOK_EVERY) {
                return Err(child::interrupted(why));
            }
        };
        progress.finish();
        let [fragments, full, chunks] =
            [status.fragments_repaired, status.chunks_full, status.chunks].map(units::count);
        // Most chunks were rebuilt during the reads, so there is no rate.
        self.steps.push(Step {
            what: "wait for repair".into(),
            bytes: status.repaired_bytes,
            time: started.elapsed(),
            result: format!("{fragments} fragments rebuilt; {full} of {chunks} chunks at full redundancy"),
            facts: json!({
                "fragments_repaired": status.fragments_repaired, "repaired_bytes": status.repaired_bytes,
                "chunks": status.chunks, "chunks_full": status.chunks_full,
            }),
            ..Step::default()
        });
        Ok(())
    }

    /// Kills the manager, wipes its directory, and restores it from the nodes.
    fn lose_manager(&mut self) -> Outcome {
        let started = Instant::now();
        let before = self.connect()?.status()?;
        self.cluster.kill("manager")?;
        let directory = self.cluster.directory.manager();
        std::fs::remove_dir_all(&directory).and_then(|()| std::fs::create_dir(&directory)).at(&directory)?;
        self.cluster.restore_manager(self.events)?;
        let after = self.connect()?.status()?;
        if (before.files, before.chunks, before.logical_bytes) != (after.files, after.chunks, after.logical_bytes) {
            bail!(
                Exit::Corrupt,
                "the restored manager knows {} files and {} chunks, before there were {} and {}",
                after.files,
                after.chunks,
                before.files,
                before.chunks
            );
        }
        self.steps.push(Step {
            what: "wipe the manager's disk, restore it".into(),
            files: after.files,
            bytes: after.logical_bytes,
            time: started.elapsed(),
            result: format!("from the log on the nodes: entry {}, term {}", after.log_seq, after.term),
            facts: json!({"log_seq": after.log_seq, "term": after.term}),
            ..Step::default()
        });
        Ok(())
    }

    fn print(&self, outcome: &Outcome) -> Outcome {
        let out = self.out;
        if out.json {
            let step = |s: &Step| {
                let mut value = s.facts.clone();
                value["step"] = s.what.clone().into();
                value["files"] = s.files.into();
                value["seconds"] = s.time.as_secs_f64().into();
                value
            };
            let steps: Vec<Value> = self.steps.iter().map(step).collect();
            let ok = outcome.is_ok() && self.different == 0;
            return out.document(&json!({"ok": ok, "different_bytes": self.different, "steps": steps}));
        }
        let mut table = Table::new("lrrrrl", &["step", "files", "bytes", "time", "rate", "result"]);
        for (i, s) in self.steps.iter().enumerate() {
            let of = |n: u64, text: String| if n == 0 { String::new() } else { text };
            table.row([
                format!("{} {}", i + 1, s.what),
                of(s.files, units::count(s.files)),
                of(s.bytes, units::bytes(s.bytes)),
                units::duration(s.time),
                of(if s.moved { s.bytes } else { 0 }, units::rate(s.bytes, s.time)),
                s.result.clone(),
            ]);
        }
        out.table(&table)?;
        if outcome.is_ok() && self.different == 0 {
            out.line("\nTwo nodes and the manager's disk were lost. Not one byte was.")?;
        }
        Ok(())
    }
}

fn path(tree: Tree, names: &[Vec<u8>]) -> Outcome<StorePath> {
    let root = StorePath::root().join(tree.root())?;
    Ok(names.iter().try_fold(root, |path, name| path.join(name))?)
}

/// Opens a file as it is, or as it would be after its edits; also returns its length. A file that grows meanwhile keeps
/// the length that the walk found.
fn open(tree: Tree, file: &LocalEntry) -> Outcome<(Box<dyn Read + Send>, u64)> {
    let original = File::open(&file.path).at(&file.path)?;
    let edits = match tree {
        Tree::Original => Edits::none(file.len_bytes()),
        Tree::Edited => Edits::of(&file.names.join(&b'/'), file.len_bytes()),
    };
    let len = edits.len_bytes();
    Ok((edits.read(original), len))
}
