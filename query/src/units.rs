//! Units on their way to the SQL engine. The threads of `tessera_sampling::engine` read and decode them, and send them
//! in batches; a sample also says of each row in which unit it lies.

use crate::error::Error;
use crate::records::{Reader, Records};
use crate::show::Watch;
use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::DataFusionError;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::sync::Arc;
use std::time::Duration;
use tessera_sampling::Error as SamplingError;
use tessera_sampling::answer::WHOLE_UNIT_BYTES;
use tessera_sampling::engine::{Engine, Next, Options, Progress};
use tessera_sampling::format::{Block, Format};
use tessera_sampling::layout::{Layout, Unit};
use tessera_sampling::schedule::{Schedule, Shares};
use tessera_sampling::source::Source;
use tessera_sampling::tally::UnitTally;
use tokio::sync::mpsc;

/// Name of the column that says in which unit a row lies, by its place in [`Sample::arrived`]. No file or query has such a one.
pub const UNIT_COLUMN: &str = "\u{1}unit of tessera\u{1}";

/// Batches that wait for the SQL engine.
const WAITING: usize = 16;
/// How often progress is shown.
const TICK: Duration = Duration::from_millis(200);

/// Batches as they arrive.
pub type Batches = mpsc::Receiver<Result<RecordBatch, DataFusionError>>;
type Sender = mpsc::Sender<Result<RecordBatch, DataFusionError>>;

/// Where units are sent: all of a unit through one channel, with no other unit in between.
struct Out(Vec<Mutex<Sender>>);

impl Out {
    fn new(senders: impl IntoIterator<Item = Sender>) -> Out {
        Out(senders.into_iter().map(Mutex::new).collect())
    }

    /// A channel through which nothing is sent now, or one that has its turn.
    fn channel(&self, number: u64) -> MutexGuard<'_, Sender> {
        let first = (number % self.0.len() as u64) as usize;
        let (before, from) = self.0.split_at(first);
        let free = from.iter().chain(before).find_map(Mutex::try_lock);
        free.unwrap_or_else(|| self.0[first].lock())
    }
}

/// A format that sends what it counts.
struct Sending {
    reader: Reader,
    /// With a column that names the unit.
    numbered: Option<SchemaRef>,
    /// None between two steps of a sample. A unit holds it while it is sent, so that none is sent in part.
    out: RwLock<Option<Out>>,
    arrived: Mutex<Vec<Unit>>,
}

/// The schema of a sampled table: that of the table, and the unit of each row.
pub fn numbered_schema(schema: &SchemaRef) -> SchemaRef {
    let unit = Arc::new(Field::new(UNIT_COLUMN, DataType::UInt64, false));
    Arc::new(Schema::new(schema.fields().iter().cloned().chain([unit]).collect::<Vec<_>>()))
}

impl Sending {
    fn close(&self) {
        *self.out.write() = None;
    }

    fn numbered(&self, batch: &RecordBatch, unit: u64) -> Result<RecordBatch, DataFusionError> {
        let Some(schema) = &self.numbered else { return Ok(batch.clone()) };
        let rows = batch.num_rows();
        let unit: ArrayRef = Arc::new(UInt64Array::from_value(unit, rows));
        let columns = batch.columns().iter().cloned().chain([unit]).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
    }
}

impl Format for Sending {
    fn load_into(&self, source: &dyn Source, unit: Unit, buffer: Vec<u8>) -> Result<Block, SamplingError> {
        self.reader.cut().load_into(source, unit, buffer)
    }

    fn tally(&self, block: &Block, _: &str, _: &mut UnitTally<'_>) -> Result<(), SamplingError> {
        let out = self.out.read();
        // The sample has ended.
        let Some(out) = &*out else { return Ok(()) };
        let unit = {
            let mut arrived = self.arrived.lock();
            arrived.push(block.unit);
            arrived.len() as u64 - 1
        };
        let batches = self.reader.decode(block)?;
        let sender = out.channel(unit);
        for batch in batches {
            // The SQL engine has enough batches, and dropped its end of the channel.
            let ended = || SamplingError::Question("nobody reads the table any more".to_string());
            sender.blocking_send(self.numbered(&batch, unit)).map_err(|_| ended())?;
        }
        Ok(())
    }
}

/// How units are read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Threads that decode.
    pub threads: usize,
    /// Equal seeds draw equal units.
    pub seed: u64,
    /// Sees the progress, and Ctrl-C.
    pub watch: Arc<Watch>,
}

impl Reading {
    fn options(&self) -> Options {
        Options { threads: self.threads, keep_values: false, seed: self.seed, tick: TICK }
    }
}

/// Reads everything.
pub fn read_all(records: &Records, reader: Reader, reading: &Reading) -> Batches {
    let (send, receive) = mpsc::channel(WAITING);
    let (source, reading) = (records.source.clone(), reading.clone());
    let layout = Layout::of(&*source, &**reader.cut(), WHOLE_UNIT_BYTES);
    let out = RwLock::new(Some(Out::new([send.clone()])));
    let sending = Arc::new(Sending { reader, numbered: None, out, arrived: Mutex::default() });
    spawn("scan", move || {
        let engine = Engine::start(source.clone(), sending.clone(), Schedule::whole(layout), &reading.options());
        let read = engine.run(|_, progress| {
            reading.watch.show(progress);
            if reading.watch.is_interrupted() || send.is_closed() { Next::Stop } else { Next::Go }
        });
        let done = match read.and_then(|progress| source.check_unchanged().map(|()| progress)) {
            Ok(progress) if progress.complete || send.is_closed() => {
                reading.watch.scanned(progress);
                Ok(())
            }
            Ok(_) => Err(Error::Interrupted),
            Err(error) => Err(error.into()),
        };
        // Before the error: a reader that has it need not wait for what is under way.
        if let Err(error) = done {
            let _ = send.blocking_send(Err(error.into()));
        }
        drop(engine);
        sending.close();
    });
    receive
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name(name.to_string()).spawn(work).expect("the system has room for a thread");
}

/// A random part of a table, which grows in steps.
pub struct Sample {
    records: Arc<Records>,
    reading: Reading,
    unit_bytes: u64,
    drop: f64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Units that the next step brings the sample to.
    needed: u64,
    running: Option<Arc<Running>>,
}

struct Running {
    engine: Engine,
    sending: Arc<Sending>,
    layout: Layout,
}

impl std::fmt::Debug for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sample")
    }
}

impl Sample {
    /// A sample of nothing yet, of units of so many bytes. `drop`: so much more is selected than is needed.
    pub fn new(records: Arc<Records>, reading: Reading, unit_bytes: u64, drop: f64) -> Sample {
        Sample { records, reading, unit_bytes, drop, state: Mutex::default() }
    }

    /// The table's records.
    pub fn records(&self) -> &Arc<Records> {
        &self.records
    }

    /// How all files are cut.
    ///
    /// # Errors
    /// As [`Records::reader`].
    pub fn layout(&self) -> Result<Layout, Error> {
        let reader = self.records.reader(None)?;
        Ok(Layout::of(&*self.records.source, &**reader.cut(), self.unit_bytes))
    }

    /// The sample that would have so many units has all.
    pub fn would_be_everything(&self, layout: &Layout, units: u64) -> bool {
        let mut schedule = Schedule::new(layout.clone(), Shares::Equal, self.reading.seed);
        schedule.need(units, self.drop);
        schedule.will_be_everything()
    }

    /// The next step brings the sample to so many units.
    pub fn need(&self, units: u64) {
        self.state.lock().needed = units;
    }

    /// Number of streams of a step.
    pub fn streams(&self) -> usize {
        self.reading.threads.max(1)
    }

    /// Begins a step: the batches of the units that are new, each unit in one stream. `reader` must read the same columns in
    /// each step.
    pub fn step(&self, reader: Reader) -> Vec<Batches> {
        let (senders, receivers): (Vec<Sender>, _) = (0..self.streams()).map(|_| mpsc::channel(WAITING)).unzip();
        let out = Out::new(senders.iter().cloned());
        let mut state = self.state.lock();
        let needed = state.needed;
        let running = match &state.running {
            Some(running) => {
                *running.sending.out.write() = Some(out);
                running.clone()
            }
            None => state.running.insert(Arc::new(self.start(reader, needed, out))).clone(),
        };
        drop(state);
        let (drop, reading, source) = (self.drop, self.reading.clone(), self.records.source.clone());
        spawn("sample", move || {
            let mut is_asked = false;
            let read = running.engine.run(|_, progress| {
                reading.watch.show(progress);
                if reading.watch.is_interrupted() || senders.iter().any(Sender::is_closed) {
                    return Next::Stop;
                }
                if progress.complete && progress.needed_units < needed && !is_asked {
                    is_asked = true;
                    return Next::Need(needed, drop);
                }
                if progress.complete { Next::Stop } else { Next::Go }
            });
            running.sending.close();
            let read = read.and_then(|_| source.check_unchanged());
            // If a stream has failed, reading has for that reason, which is the one to tell.
            if let (Err(error), false) = (read, senders.iter().any(Sender::is_closed)) {
                let _ = senders[0].blocking_send(Err(Error::from(error).into()));
            }
        });
        receivers
    }

    fn start(&self, reader: Reader, needed: u64, out: Out) -> Running {
        let source = self.records.source.clone();
        let layout = Layout::of(&*source, &**reader.cut(), self.unit_bytes);
        let mut schedule = Schedule::new(layout.clone(), Shares::Equal, self.reading.seed);
        schedule.need(needed, self.drop);
        let numbered = Some(numbered_schema(reader.schema()));
        let sending = Arc::new(Sending { reader, numbered, out: RwLock::new(Some(out)), arrived: Mutex::default() });
        let engine = Engine::start(source, sending.clone(), schedule, &self.reading.options());
        Running { engine, sending, layout }
    }

    /// The units that arrived, from this one on, each with its stratum. To be called between steps.
    pub fn arrived(&self, from: usize) -> Vec<(Unit, usize)> {
        let state = self.state.lock();
        let Some(running) = &state.running else { return Vec::new() };
        let arrived = running.sending.arrived.lock();
        arrived[from..].iter().map(|unit| (*unit, running.layout.stratum_of(unit))).collect()
    }

    /// A unit that arrived, and its stratum.
    pub fn unit(&self, number: u64) -> Option<(Unit, usize)> {
        let state = self.state.lock();
        let running = state.running.as_ref()?;
        let unit = *running.sending.arrived.lock().get(number as usize)?;
        Some((unit, running.layout.stratum_of(&unit)))
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let state = self.state.lock();
        state.running.as_ref().map_or_else(Progress::default, |running| running.engine.progress())
    }
}
