//! Searches of the layer `cola` on an accelerator: the large levels stay in its memory, and only queries and answers travel.
//! A thread of its own has them, because a device's memory belongs to one thread.

use crate::exit::{Failure, Outcome};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tessera_accel::Spec;
use tessera_accel::runtime::{Options, Runtime};
use tessera_flash::ftl::{Layer, OnCpu, Search, Searches, View};
use tessera_hashgpu::ResidentLevels;
use tessera_hashgpu::lookup::{KeyPosition, Levels, Sorted};

/// Levels with fewer entries are searched by the CPU: they change often, and lie in its caches.
const KEPT_LEN: usize = 1 << 16;

/// What searches levels on a device; `cpu`, and `auto` where there is no device: the CPU. Layers other than `cola` need no
/// device, so one that is absent keeps none of them from running.
///
/// # Errors
/// The device cannot be used.
pub fn searches(device: Spec, layers: &[&Layer]) -> Outcome<Searches> {
    if layers.iter().all(|layer| layer.name != "cola") {
        return Ok(Searches::default());
    }
    let (runtime, _) = device.runtime(Options::default()).map_err(Failure::usage)?;
    if runtime.devices().is_empty() {
        return Ok(Searches::default());
    }
    let runtime = Arc::new(runtime);
    Ok(Searches::new(move || Box::new(OnDevice::start(runtime.clone()))))
}

/// Something for the thread to do.
struct Asked {
    /// Levels to keep in place of those before.
    levels: Option<Vec<Vec<u64>>>,
    queries: Vec<u64>,
}

/// What the thread answers; `None`: the device did not.
type Answer = Option<Vec<Option<KeyPosition>>>;

/// Searches of one map.
struct OnDevice {
    link: Option<(Sender<Asked>, Receiver<Answer>)>,
    thread: Option<JoinHandle<()>>,
    /// Versions of the levels that the device has.
    kept: Vec<u64>,
    loads: u64,
    queries: u64,
    /// Batches that the CPU searched because the device had failed.
    failures: u64,
}

impl OnDevice {
    fn start(runtime: Arc<Runtime>) -> OnDevice {
        let (ask, asked) = channel();
        let (answer, answers) = channel();
        let serve = move || serve(&runtime, &asked, &answer);
        let thread = std::thread::Builder::new().name("cola-levels".into()).spawn(serve).ok();
        let link = thread.is_some().then_some((ask, answers));
        OnDevice { link, thread, kept: Vec::new(), loads: 0, queries: 0, failures: 0 }
    }

    /// Searches the levels on the device.
    fn on_device(&mut self, levels: &[View<'_>], queries: &[u32]) -> Answer {
        let (ask, answers) = self.link.as_ref()?;
        let versions: Vec<u64> = levels.iter().map(|level| level.version).collect();
        let is_new = versions != self.kept;
        let widen = |level: &View<'_>| level.keys.iter().map(|key| u64::from(*key)).collect();
        let wanted = is_new.then(|| levels.iter().map(widen).collect());
        ask.send(Asked { levels: wanted, queries: queries.iter().map(|query| u64::from(*query)).collect() }).ok()?;
        let answer = answers.recv().ok().flatten();
        self.loads += u64::from(is_new);
        self.kept = versions;
        if answer.is_none() {
            // From here on the CPU searches: trying again would copy all levels for each batch.
            self.link = None;
        }
        answer
    }
}

impl Search for OnDevice {
    fn find(&mut self, levels: &[View<'_>], queries: &[u32]) -> Vec<Option<KeyPosition>> {
        let first = levels.iter().position(|level| level.keys.len() >= KEPT_LEN).unwrap_or(levels.len());
        let (small, large) = levels.split_at(first);
        let mut found = OnCpu.find(small, queries);
        let left: Vec<usize> = (0..queries.len()).filter(|i| found[*i].is_none()).collect();
        if large.is_empty() || left.is_empty() {
            return found;
        }
        let asked: Vec<u32> = left.iter().map(|i| queries[*i]).collect();
        let answers = match self.on_device(large, &asked) {
            Some(answers) => {
                self.queries += asked.len() as u64;
                answers
            }
            None => {
                self.failures += 1;
                OnCpu.find(large, &asked)
            }
        };
        for (i, place) in left.into_iter().zip(answers) {
            found[i] = place.map(|place| KeyPosition { level: place.level + first as u16, ..place });
        }
        found
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![("device_loads", self.loads), ("device_queries", self.queries), ("device_failures", self.failures)]
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        self.link = None;
        self.thread.take().map(JoinHandle::join);
    }
}

/// Keeps levels on the first device, and answers until nobody can ask any more.
fn serve(runtime: &Runtime, asked: &Receiver<Asked>, answer: &Sender<Answer>) {
    let mut kept: Option<ResidentLevels> = None;
    while let Ok(Asked { levels, queries }) = asked.recv() {
        if let Some(levels) = levels {
            // The device may not have room for both.
            drop(kept.take());
            let sorted = levels.iter().map(|keys| Sorted::trusted(keys)).collect();
            kept = Levels::new(sorted).ok().and_then(|levels| ResidentLevels::new(runtime, 0, &levels).ok());
        }
        let found = kept.as_ref().and_then(|levels| levels.find(runtime, &queries).ok());
        if answer.send(found).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_accel::emulated::Emulated;

    #[test]
    fn a_device_without_room_is_asked_once_and_the_cpu_answers() {
        let backend = Arc::new(Emulated::new(0).with_memory(64));
        let options = Options { cpu_threads: 1, ..Options::default() };
        let mut search = OnDevice::start(Arc::new(Runtime::new(vec![backend], options).unwrap()));
        let (newer, older): (Vec<u32>, Vec<u32>) = ((0..100).collect(), (0..KEPT_LEN as u32).map(|i| 2 * i).collect());
        let levels = [View { keys: &newer, version: 1 }, View { keys: &older, version: 2 }];
        let queries = [7, 99, 100, 101, 131_070, 131_072];
        for _ in 0..3 {
            assert_eq!(search.find(&levels, &queries), OnCpu.find(&levels, &queries));
        }
        assert_eq!((search.loads, search.queries, search.failures), (1, 0, 3));
    }
}
