//! The steps of the demo: store, store an edited copy and lose the manager that leads meanwhile, lose two nodes, read, repair, lose
//! all managers' disks, restore, read.

use super::compare::Compare;
use super::edits::Edits;
use crate::args::Common;
use crate::daemon::signals::{Event, Events};
use crate::exit::{At, Exit, Outcome, bail};
use crate::files::local::{self, Kind, LocalEntry};
use crate::files::pool;
use crate::remote::Store;
use crate::term::{Out, Progress, Table, units};
use crate::up::child;
use crate::up::cluster::Cluster;
use crate::up::directory::manager_name;
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tessera_client::path::StorePath;
use tessera_client::{GetOptions, Owner, PutOptions, Sink, Source};
use tessera_wire::Health;

/// Files in transfer at once.
const JOBS: usize = 16;
/// A repair without progress for this long has failed.
const REPAIR_PATIENCE: Duration = Duration::from_secs(300);
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// The store gets this long to be whole: every node up, the metadata on as many peers as it should be.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// A standby gets this long to take over, and is asked this often whether it leads.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A row of the table.
#[derive(Default)]
struct Step {
    what: &'static str,
    files: u64,
    bytes: u64,
    /// Whether the bytes were moved in this time, so that a rate makes sense.
    moved: bool,
    /// `None`: the time that the step took.
    time: Option<Duration>,
    result: String,
    facts: Value,
}

/// The loss of the manager that led.
struct Takeover {
    /// Its name.
    killed: String,
    /// Name of the manager that leads instead.
    leads: String,
    /// No manager answered for this long.
    unanswered: Duration,
}

impl Takeover {
    /// Kills the manager that leads, and waits for another one.
    fn force(cluster: &mut Cluster) -> Outcome<Takeover> {
        let (killed, _) = cluster.leader()?;
        cluster.kill(&killed)?;
        let since = Instant::now();
        loop {
            match cluster.leader() {
                Ok((leads, _)) => return Ok(Takeover { killed, leads, unanswered: since.elapsed() }),
                Err(failure) if since.elapsed() > TAKEOVER_WITHIN => return Err(failure),
                Err(_) => std::thread::sleep(ASK_EVERY),
            }
        }
    }
}

struct Run<'a> {
    cluster: &'a mut Cluster,
    events: &'a Events,
    out: Out,
    files: Vec<LocalEntry>,
    bytes: u64,
    steps: Vec<Step>,
    different: u64,
}

/// Runs all steps.
///
/// # Errors
/// A step failed, or a byte differs.
pub fn run(cluster: &mut Cluster, source: &Path, events: &Events, out: Out) -> Outcome {
    let (found, failures) = local::walk(source)?;
    failures.iter().for_each(|f| out.warn(f));
    let files: Vec<LocalEntry> = found.into_iter().filter(|f| matches!(f.kind, Kind::File(_))).collect();
    if files.is_empty() {
        bail!(Exit::Usage, "{}: no files to store", source.display());
    }
    let bytes = files.iter().map(LocalEntry::len_bytes).sum();
    let mut run = Run { cluster, events, out, files, bytes, steps: Vec::new(), different: 0 };
    let outcome = run.run_steps();
    run.print(&outcome)?;
    outcome?;
    match run.different {
        0 => Ok(()),
        n => bail!(Exit::Corrupt, "{} bytes differ from what was stored", units::count(n)),
    }
}

impl Run<'_> {
    fn run_steps(&mut self) -> Outcome {
        self.out.note(format!(
            "Starting {}; storing {} files, {} ...",
            self.cluster.shape.counts.daemons(),
            units::count(self.files.len() as u64),
            units::bytes(self.bytes)
        ));
        self.cluster.start(self.events, self.out)?;
        self.cluster.wait_ready(self.events, READY_WITHIN)?;
        self.step("store the files", |run| Ok(run.store(false, |_| Ok(()))?.0))?;
        let mut takeover = None;
        self.step("store an edited copy", |run| {
            let (step, meanwhile) = run.store(true, Takeover::force)?;
            takeover = Some(meanwhile);
            Ok(step)
        })?;
        if let Some(takeover) = takeover {
            self.step("kill -9 the leader meanwhile", |run| run.take_over(&takeover))?;
        }
        self.step("kill -9 n2 and n5", Self::kill_nodes)?;
        self.step("read everything back", Self::read_all)?;
        self.step("wait for repair", Self::repair)?;
        self.step("read everything again", Self::read_all)?;
        self.step("wipe both managers' disks, restore", Self::lose_managers)?;
        self.step("read everything once more", Self::read_all)
    }

    /// Runs a step, and keeps it with its name and time.
    fn step(&mut self, what: &'static str, step: impl FnOnce(&mut Self) -> Outcome<Step>) -> Outcome {
        let started = Instant::now();
        let step = step(self)?;
        let time = step.time.or_else(|| Some(started.elapsed()));
        self.steps.push(Step { what, time, ..step });
        Ok(())
    }

    fn connect(&self) -> Outcome<Store> {
        let output = Out { quiet: true, json: false };
        Store::connect(&Common::new(&self.cluster.manager_list(), 60, output))
    }

    /// Stores one of the trees. `meanwhile` runs when half of the files are begun.
    fn store<T: Send>(
        &mut self,
        edited: bool,
        meanwhile: impl FnOnce(&mut Cluster) -> Outcome<T> + Send,
    ) -> Outcome<(Step, T)> {
        let store = self.connect()?;
        let before = store.status()?;
        let depths =
            |file: &LocalEntry| (0..file.names.len().max(1)).map(|depth| file.names[..depth].to_vec()).collect();
        let directories: BTreeSet<Vec<Vec<u8>>> = self.files.iter().flat_map::<Vec<_>, _>(depths).collect();
        for names in directories {
            store.mkdir(&path(edited, &names)?, true)?;
        }
        let Run { cluster, files, out, .. } = self;
        let (stored, meanwhile) = std::thread::scope(|scope| {
            let (half, is_half) = bounded(1);
            let meanwhile = scope.spawn(move || {
                // An error: all files are stored already.
                let _ = is_half.recv();
                meanwhile(cluster)
            });
            let (begun, count) = (AtomicUsize::new(0), files.len());
            let begin = move || {
                if begun.fetch_add(1, Ordering::Relaxed) == count / 2 {
                    let _ = half.send(());
                }
            };
            let stored = put_all(&store, edited, files, *out, begin);
            (stored, meanwhile.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (time, meanwhile, after) = (stored?, meanwhile?, store.status()?);
        let logical = after.logical_bytes.saturating_sub(before.logical_bytes);
        let new = after.unique_bytes.saturating_sub(before.unique_bytes);
        let on_disk = after.stored_bytes.saturating_sub(before.stored_bytes);
        let saved = units::percent(logical.saturating_sub(new), logical);
        let [new_text, on_disk_text] = [new, on_disk].map(units::bytes);
        let step = Step {
            files: self.files.len() as u64,
            bytes: logical,
            moved: true,
            time: Some(time),
            result: format!("{new_text} new, {saved} saved by deduplication; {on_disk_text} on disks"),
            facts: json!({"logical_bytes": logical, "new_bytes": new, "stored_bytes": on_disk}),
            ..Step::default()
        };
        Ok((step, meanwhile))
    }

    /// Reports the loss of the manager that led, and starts it again: now it stands by.
    fn take_over(&mut self, takeover: &Takeover) -> Outcome<Step> {
        let Takeover { killed, leads, unanswered } = takeover;
        self.cluster.launch(killed, &[], self.events)?;
        self.cluster.wait_voters(self.events, READY_WITHIN)?;
        Ok(Step {
            time: Some(*unanswered),
            result: format!("nobody answered until {leads} led; {killed} stands by now"),
            facts: json!({"killed": killed, "leads": leads, "unanswered_seconds": unanswered.as_secs_f64()}),
            ..Step::default()
        })
    }

    fn kill_nodes(&mut self) -> Outcome<Step> {
        let names = ["n2", "n5"];
        names.iter().try_for_each(|name| self.cluster.kill(name))?;
        let (left, nodes) = (self.cluster.running_nodes(), self.cluster.shape.counts.nodes);
        let result = format!("{left} of {nodes} nodes are left");
        Ok(Step { result, facts: json!({"killed": names}), ..Step::default() })
    }

    /// Reads both trees and compares every byte with the stored ones.
    fn read_all(&mut self) -> Outcome<Step> {
        let store = self.connect()?;
        let progress = Progress::bytes(self.out, "compare", Some(self.bytes * 2));
        let sums = Mutex::new((0, 0));
        let work = |(edited, file): (bool, &LocalEntry)| -> Outcome {
            let path = path(edited, &file.names)?;
            let mut compare = Compare::new(open(edited, file)?.0);
            let options = GetOptions { progress: Some(&mut progress.steps()), ..GetOptions::default() };
            store.get(&path, Sink::Writer(&mut compare), options)?;
            let (compared, different) = compare.finish().at(&file.path)?;
            let mut sums = sums.lock();
            *sums = (sums.0 + compared, sums.1 + different);
            match different {
                0 => Ok(()),
                n => bail!(Exit::Corrupt, "{path}: {n} bytes differ"),
            }
        };
        let jobs = [false, true].iter().flat_map(|edited| self.files.iter().map(|f| (*edited, f))).collect();
        let ran = pool::run(jobs, |(_, f)| f.len_bytes(), JOBS, work, |f| progress.warn(f));
        progress.finish();
        let (compared, different) = sums.into_inner();
        self.different += different;
        ran.outcome()?;
        Ok(Step {
            files: self.files.len() as u64 * 2,
            bytes: compared,
            moved: true,
            time: Some(progress.elapsed()),
            result: format!("{} bytes compared, {different} differ", units::count(compared)),
            facts: json!({"compared_bytes": compared, "different_bytes": different}),
            ..Step::default()
        })
    }

    /// Waits until every chunk has all its fragments again.
    fn repair(&mut self) -> Outcome<Step> {
        let store = self.connect()?;
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
                bail!(Exit::Failed, "repair makes no progress: {} chunks reduced", now.0);
            }
            if let Ok(Event::Stop(why)) = self.events.receiver().recv_timeout(CHECK_EVERY) {
                return Err(child::interrupted(why));
            }
        };
        progress.finish();
        let [fragments, full, chunks] =
            [status.fragments_repaired, status.chunks_full, status.chunks].map(units::count);
        // Most chunks were rebuilt during the reads, so there is no rate.
        Ok(Step {
            bytes: status.repaired_bytes,
            result: format!("{fragments} fragments rebuilt; {full} of {chunks} chunks at full redundancy"),
            facts: json!({
                "fragments_repaired": status.fragments_repaired, "repaired_bytes": status.repaired_bytes,
                "chunks": status.chunks, "chunks_full": status.chunks_full,
            }),
            ..Step::default()
        })
    }

    /// Kills all managers, wipes their directories, and restores them from the nodes, whose voters are a majority by then.
    fn lose_managers(&mut self) -> Outcome<Step> {
        self.cluster.wait_voters(self.events, READY_WITHIN)?;
        let before = self.connect()?.status()?;
        let managers = 1..=self.cluster.shape.counts.managers;
        managers.clone().try_for_each(|number| self.cluster.kill(&manager_name(number)))?;
        for number in managers {
            let directory = self.cluster.directory.manager(number);
            std::fs::remove_dir_all(&directory).and_then(|()| std::fs::create_dir(&directory)).at(&directory)?;
        }
        self.cluster.restore_managers(self.events, self.out)?;
        let after = self.connect()?.status()?;
        if (before.files, before.chunks, before.logical_bytes) != (after.files, after.chunks, after.logical_bytes) {
            bail!(
                Exit::Corrupt,
                "the restored managers know {} files and {} chunks, before there were {} and {}",
                after.files,
                after.chunks,
                before.files,
                before.chunks
            );
        }
        Ok(Step {
            files: after.files,
            bytes: after.logical_bytes,
            result: format!("from the log on the nodes: entry {}, term {}", after.log_seq, after.term),
            facts: json!({"log_seq": after.log_seq, "term": after.term}),
            ..Step::default()
        })
    }

    fn print(&self, outcome: &Outcome) -> Outcome {
        let out = self.out;
        if out.json {
            let step = |s: &Step| {
                let mut value = s.facts.clone();
                value["step"] = s.what.into();
                value["files"] = s.files.into();
                value["seconds"] = s.time.unwrap_or_default().as_secs_f64().into();
                value
            };
            let steps: Vec<Value> = self.steps.iter().map(step).collect();
            let ok = outcome.is_ok() && self.different == 0;
            return out.document(&json!({"ok": ok, "different_bytes": self.different, "steps": steps}));
        }
        let mut table = Table::new("lrrrrl", &["step", "files", "bytes", "time", "rate", "result"]);
        for (i, s) in self.steps.iter().enumerate() {
            let time = s.time.unwrap_or_default();
            let of = |n: u64, text: String| if n == 0 { String::new() } else { text };
            table.row([
                format!("{} {}", i + 1, s.what),
                of(s.files, units::count(s.files)),
                of(s.bytes, units::bytes(s.bytes)),
                units::duration(time),
                of(if s.moved { s.bytes } else { 0 }, units::rate(s.bytes, time)),
                s.result.clone(),
            ]);
        }
        out.table(&table)?;
        if outcome.is_ok() && self.different == 0 {
            out.line("")?;
            out.line("The leading manager, two nodes and then all managers' disks were lost. Not one byte was.")?;
        }
        Ok(())
    }
}

/// Stores one of the trees, whose directories exist; `begin` is called before each file. Returns how long it took.
fn put_all(store: &Store, edited: bool, files: &[LocalEntry], out: Out, begin: impl Fn() + Sync) -> Outcome<Duration> {
    let progress = Progress::bytes(out, "put", Some(files.iter().map(LocalEntry::len_bytes).sum()));
    let steps = &progress;
    // It owns `begin`, which ends with the work.
    let work = move |file: &LocalEntry| -> Outcome {
        begin();
        let (mut reader, len) = open(edited, file)?;
        let source = Source::Reader { reader: &mut reader, len_bytes: Some(len) };
        let owner = Owner { mode: 0o644, ..local::process_owner() };
        let options = PutOptions { owner, progress: Some(&mut steps.steps()), ..PutOptions::default() };
        store.put(&path(edited, &file.names)?, source, options)?;
        Ok(())
    };
    let ran = pool::run(files.iter().collect(), |f| f.len_bytes(), JOBS, work, |f| progress.warn(f));
    progress.finish();
    ran.outcome()?;
    Ok(progress.elapsed())
}

/// The path of a file in one of the two stored trees.
fn path(edited: bool, names: &[Vec<u8>]) -> Outcome<StorePath> {
    let root = StorePath::root().join(if edited { &b"edited"[..] } else { b"original" })?;
    Ok(names.iter().try_fold(root, |path, name| path.join(name))?)
}

/// Opens a file as it is, or as it would be after its edits; also returns its length. A file that grows meanwhile keeps
/// the length that the walk found.
fn open(edited: bool, file: &LocalEntry) -> Outcome<(Box<dyn Read + Send>, u64)> {
    let original = File::open(&file.path).at(&file.path)?;
    let edits = match edited {
        true => Edits::of(&file.names.join(&b'/'), file.len_bytes()),
        false => Edits::none(file.len_bytes()),
    };
    let len = edits.len_bytes();
    Ok((edits.read(original), len))
}
