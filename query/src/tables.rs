//! Tables of the SQL engine: files by name, read whole, or a sample of them.

use crate::error::Error;
use crate::paths::{self, Cluster};
use crate::records::{ReadOptions, Reader, Records};
use crate::units::{Batches, Reading, Sample, UNIT_COLUMN, numbered_schema, read_all};
use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{SchemaProvider, Session, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Every table of a query. A name means the same files wherever it stands, in the store the same versions.
pub struct Tables {
    cluster: Cluster,
    options: ReadOptions,
    reading: Reading,
    open: Mutex<HashMap<String, Arc<FileTable>>>,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tables")
    }
}

impl Tables {
    /// No table is open yet.
    pub fn new(cluster: Cluster, options: ReadOptions, reading: Reading) -> Tables {
        Tables { cluster, options, reading, open: Mutex::default() }
    }

    fn open(&self, name: &str) -> Result<Arc<FileTable>, Error> {
        let mut open = self.open.lock();
        if let Some(table) = open.get(name) {
            return Ok(table.clone());
        }
        let source = paths::open(name, &self.cluster)?;
        let records = Arc::new(Records::open(source, &self.options)?);
        let table = Arc::new(FileTable { records, reading: self.reading.clone() });
        open.insert(name.to_string(), table.clone());
        Ok(table)
    }
}

#[async_trait]
impl SchemaProvider for Tables {
    fn table_names(&self) -> Vec<String> {
        self.open.lock().keys().cloned().collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let table = tokio::task::block_in_place(|| self.open(name))?;
        Ok(Some(table))
    }

    /// Every name may be that of files; whether they are there is found out when they are opened.
    fn table_exist(&self, _: &str) -> bool {
        true
    }
}

/// Files that are read whole.
pub struct FileTable {
    /// Their records.
    pub records: Arc<Records>,
    /// How they are read.
    pub reading: Reading,
}

impl fmt::Debug for FileTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileTable").field("first", &self.records.source.files()[0].name).finish()
    }
}

#[async_trait]
impl TableProvider for FileTable {
    fn schema(&self) -> SchemaRef {
        self.records.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = self.records.reader(projection)?.schema().clone();
        let (records, reading, projection) = (self.records.clone(), self.reading.clone(), projection.cloned());
        let begin = move || {
            let reader: Reader = records.reader(projection.as_ref())?;
            Ok(vec![read_all(&records, reader, &reading)])
        };
        scan(schema, None, limit, (1, Box::new(begin)))
    }
}

/// A sample of a table. Each scan is a step of it.
#[derive(Debug)]
pub struct SampledTable {
    /// The sample.
    pub sample: Arc<Sample>,
}

#[async_trait]
impl TableProvider for SampledTable {
    fn schema(&self) -> SchemaRef {
        numbered_schema(&self.sample.records().schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all = self.schema();
        let unit = all.index_of(UNIT_COLUMN)?;
        let wanted: Vec<usize> = projection.map_or_else(|| (0..all.fields().len()).collect(), Clone::clone);
        // The unit comes last in what is read.
        let columns: Vec<usize> = wanted.iter().copied().filter(|column| *column != unit).collect();
        let read = Arc::new(all.project(&columns.iter().copied().chain([unit]).collect::<Vec<_>>())?);
        let place = |column: &usize| columns.iter().position(|read| read == column).unwrap_or(columns.len());
        let order: Vec<usize> = wanted.iter().map(place).collect();
        let sample = self.sample.clone();
        let streams = sample.streams();
        let begin = move || Ok(sample.step(sample.records().reader(Some(&columns))?));
        scan(read, Some(&order), None, (streams, Box::new(begin)))
    }
}

/// Begins to read, in several streams.
type Begin = Box<dyn FnMut() -> Result<Vec<Batches>, Error> + Send>;

fn scan(
    schema: SchemaRef,
    projection: Option<&Vec<usize>>,
    limit: Option<usize>,
    (streams, begin): (usize, Begin),
) -> Result<Arc<dyn ExecutionPlan>> {
    let reading = Arc::new(Mutex::new(Streams { begin, begun: Vec::new() }));
    let partition = |number| -> Arc<dyn PartitionStream> {
        Arc::new(Partition { schema: schema.clone(), number, reading: reading.clone() })
    };
    let partitions = (0..streams).map(partition).collect();
    Ok(Arc::new(StreamingTableExec::try_new(schema.clone(), partitions, projection, [], false, limit)?))
}

/// What is read when the engine executes a scan.
struct Streams {
    begin: Begin,
    /// Those of the last execution that nobody has taken yet.
    begun: Vec<Option<Batches>>,
}

impl Streams {
    /// One of the streams. Reading begins anew if it was taken before.
    fn take(&mut self, number: usize) -> Result<Batches, Error> {
        if !matches!(self.begun.get(number), Some(Some(_))) {
            self.begun = (self.begin)()?.into_iter().map(Some).collect();
        }
        Ok(self.begun[number].take().expect("as many streams as the plan has"))
    }
}

struct Partition {
    schema: SchemaRef,
    number: usize,
    reading: Arc<Mutex<Streams>>,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Partition")
    }
}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut begun = self.reading.lock().take(self.number);
        let mut failed = false;
        let next = move |context: &mut std::task::Context<'_>| match &mut begun {
            Ok(batches) => batches.poll_recv(context),
            Err(_) if std::mem::replace(&mut failed, true) => std::task::Poll::Ready(None),
            Err(error) => {
                let error = std::mem::replace(error, Error::Interrupted);
                std::task::Poll::Ready(Some(Err(error.into())))
            }
        };
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), futures_util::stream::poll_fn(next)))
    }
}
