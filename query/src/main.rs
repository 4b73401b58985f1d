//! `tessera query`: SQL over files, exactly or from a sample.
//!
//! DataFusion parses, plans and executes. This program adds the tables ([`tables`]: files in the store or in local directories,
//! of which only the wanted columns of Parquet are read), arithmetic that does not wrap ([`checked`], [`sum`], [`spans`]),
//! names for columns that nobody has named ([`names`]), a refusal of all that writes ([`read_only`]), and the estimates
//! ([`estimate`]: aggregates of a random part, with intervals). Start at [`run`]. docs/sampling.md, section 7, has the rules.

mod args;
mod checked;
mod error;
mod estimate;
mod names;
mod paths;
mod read_only;
mod records;
mod show;
mod spans;
mod sum;
mod tables;
mod units;

use args::{Amount, Args};
use clap::Parser;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider};
use datafusion::logical_expr::{AggregateUDF, LogicalPlan, ScalarUDF, TableScan};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::parser::Statement;
use error::Error;
use estimate::{Outcome, Terms, estimate, recognize};
use paths::Cluster;
use records::ReadOptions;
use show::{How, Shown, Watch, show};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tables::Tables;
use units::Reading;

const STORE_UNIT_BYTES: u64 = 64 << 10;
const LOCAL_UNIT_BYTES: u64 = 16 << 10;
/// The engine follows an expression by recursion, and the default stack of a thread overflows at 4,000 terms.
const STACK_BYTES: usize = 256 << 20;

fn main() -> ExitCode {
    let json = std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json");
    let done = match Args::try_parse() {
        Ok(args) => on_a_large_stack(|| run(&args)),
        Err(error) if json && error.use_stderr() => Err(usage_error(&error)),
        Err(error) => error.exit(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", if json { error.document().to_string() } else { format!("tessera: {error}") });
            ExitCode::from(error.exit_code())
        }
    }
}

/// The fact without the usage text.
fn usage_error(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    let facts = text.split("\n\nUsage:").next().unwrap_or_default();
    Error::Usage(facts.strip_prefix("error: ").unwrap_or(facts).to_string())
}

fn on_a_large_stack(run: impl FnOnce() -> Result<(), Error> + Send) -> Result<(), Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run);
        let thread = thread.map_err(|error| Error::Engine(format!("no thread can be started: {error}")))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn run(args: &Args) -> Result<(), Error> {
    let seed = args.seed.unwrap_or_else(rand::random);
    let watch = Arc::new(Watch::new(catch_interrupt()?, args.quiet || args.json));
    let reading = Reading { threads: args.threads(), seed, watch };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads().max(2))
        .thread_stack_size(STACK_BYTES)
        .enable_time()
        .build()
        .map_err(|error| Error::Engine(format!("no thread can be started: {error}")))?;
    let done = runtime.block_on(answer(args, &reading));
    reading.watch.clear();
    done
}

async fn answer(args: &Args, reading: &Reading) -> Result<(), Error> {
    let started = Instant::now();
    let context = session(args, reading)?;
    let statement = context.state().sql_to_statement(&args.sql, &datafusion::config::Dialect::Generic)?;
    read_only::check_statement(&statement)?;
    refuse_tablesample(&statement)?;
    let plan = names::plan(&context, statement).await?;
    read_only::check_plan(&plan)?;
    let (batches, schema, how) = match args.amount() {
        Amount::Exact => exactly(&context, plan, None).await?,
        amount => estimated(args, reading, (&context, plan), amount).await?,
    };
    let (batches, schema) = names::unique(batches, &schema)?;
    reading.watch.clear();
    let progress = match &how {
        How::Estimated(estimated) => estimated.progress,
        How::Exactly(_) => reading.watch.all_scanned(),
    };
    let was_interrupted = reading.watch.is_interrupted();
    let shown = Shown {
        schema,
        batches: &batches,
        how: &how,
        progress,
        was_interrupted,
        elapsed: started.elapsed(),
        seed: reading.seed,
    };
    show(&shown, args.json, args.quiet)?;
    if was_interrupted { Err(Error::Interrupted) } else { Ok(()) }
}

type Answer = (Vec<RecordBatch>, SchemaRef, How);

/// `reason`: why the answer is not estimated.
async fn exactly(context: &SessionContext, plan: LogicalPlan, reason: Option<String>) -> Result<Answer, Error> {
    let frame = context.execute_logical_plan(plan).await?;
    let schema = Arc::new(frame.schema().as_arrow().clone());
    Ok((frame.collect().await?, schema, How::Exactly(reason)))
}

async fn estimated(
    args: &Args,
    reading: &Reading,
    (context, plan): (&SessionContext, LogicalPlan),
    amount: Amount,
) -> Result<Answer, Error> {
    let state = context.state();
    let analyzed = state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {})?;
    let query = match recognize(&analyzed) {
        Ok(query) => query,
        Err(reason) => return exactly(context, plan, Some(reason)).await,
    };
    if let Some((column, estimate)) = query.name_taken() {
        return Err(Error::Usage(format!(
            "`{column}` is the name of an end of the interval of `{estimate}`: {estimate}_lo and {estimate}_hi are taken; \
             name the column otherwise with AS"
        )));
    }
    let unit_bytes = args.unit.unwrap_or(if is_of_store(&plan) { STORE_UNIT_BYTES } else { LOCAL_UNIT_BYTES });
    let terms = Terms { amount, confidence: args.confidence, top: args.top, drop: args.drop, unit_bytes };
    match estimate(context, &query, &terms, reading).await? {
        Outcome::Estimated(mut estimated) => {
            let batches = std::mem::take(&mut estimated.batches);
            let schema = batches.first().map_or_else(|| Arc::new(analyzed.schema().as_arrow().clone()), |b| b.schema());
            Ok((batches, schema, How::Estimated(estimated)))
        }
        Outcome::ReadEverything(reason) => exactly(context, plan, Some(reason)).await,
    }
}

fn is_of_store(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(TableScan { table_name, .. }) => paths::is_in_store(table_name.table()),
        other => other.inputs().into_iter().any(is_of_store),
    }
}

fn session(args: &Args, reading: &Reading) -> Result<SessionContext, Error> {
    let delimiter = match args.delimiter.map(u8::try_from) {
        Some(Ok(byte)) if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Some(byte),
        Some(_) => return Err(Error::Usage("--delimiter is one ASCII character, and no quote".to_string())),
        None => None,
    };
    let mut config = SessionConfig::new()
        .with_target_partitions(args.threads())
        .with_create_default_catalog_and_schema(false)
        .with_default_catalog_and_schema("tessera", "files");
    // A plan and its execution may disagree on whether a column has nulls (`CASE` with a number in one branch), which harms
    // nothing.
    config.options_mut().execution.skip_physical_aggregate_schema_check = true;
    let context = SessionContext::new_with_config(config);
    let cluster = Cluster { manager: args.manager.clone(), wait_s: args.wait };
    let options = ReadOptions { format: args.format, text: args.text.clone(), delimiter, json: args.json };
    let catalog = MemoryCatalogProvider::new();
    catalog.register_schema("files", Arc::new(Tables::new(cluster, options, reading.clone())))?;
    context.register_catalog("tessera", Arc::new(catalog));
    context.register_udaf(AggregateUDF::from(sum::WideSum::new()));
    context.register_udaf(AggregateUDF::from(sum::WideAvg::new()));
    context.register_udf(ScalarUDF::from(names::CastAs::new()));
    context.add_analyzer_rule(Arc::new(checked::CheckedArithmetic));
    Ok(context)
}

/// The engine parses TABLESAMPLE and ignores it; nobody would notice.
fn refuse_tablesample(statement: &Statement) -> Result<(), Error> {
    match statement.to_string().to_ascii_uppercase().contains("TABLESAMPLE") {
        true => Err(Error::Usage("write --ratio or --error instead of TABLESAMPLE: they give intervals".to_string())),
        false => Ok(()),
    }
}

/// The first Ctrl-C ends the sample, and what is known is printed; the second ends the program.
fn catch_interrupt() -> Result<Arc<AtomicBool>, Error> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let exit = i32::from(Error::Interrupted.exit_code());
        signal_hook::flag::register_conditional_shutdown(signal, exit, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .map_err(|error| Error::Engine(format!("cannot catch Ctrl-C: {error}")))?;
    }
    Ok(flag)
}
