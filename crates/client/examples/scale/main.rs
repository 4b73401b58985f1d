//! The client of `bench/scale.py`: it fills a store with very many small files and with files of very many bytes, through the client
//! library alone.
//!
//! It reads commands from standard input, one a line, and answers each with one line: `ok key=value …` or `err what went wrong`. Small
//! files are in [`files`], files whose extents name chunks that the store has in [`named`].

mod files;
mod named;

use tessera_client::{Client, Options};

/// What a command answers, or why it failed.
type Reply = Result<String, Box<dyn std::error::Error + Send + Sync>>;

/// What the commands are, for a person who starts this by hand.
const HELP: &str = "connect MANAGERS | plan FILES DIRECTORIES | dirs | files FROM COUNT THREADS | verify WRITTEN COUNT | \
    stat WRITTEN COUNT THREADS | probe NUMBER | pool CHUNKS CHUNK_BYTES | named FROM COUNT EXTENTS | quit";

/// A connection, and the chunks that named files consist of.
#[derive(Default)]
struct Driver {
    client: Option<Client>,
    plan: Option<files::Plan>,
    pool: named::Pool,
}

impl Driver {
    /// Carries out one command line; `None` ends the program.
    fn run(&mut self, line: &str) -> Option<Reply> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["quit"] => None,
            ["connect", managers] => Some(Client::connect(managers, Options::default()).map_err(Into::into).map(|c| {
                self.client = Some(c);
                String::new()
            })),
            words => Some(self.ask(words)),
        }
    }

    fn ask(&mut self, words: &[&str]) -> Reply {
        let client = self.client.as_ref().ok_or("not connected: say connect MANAGERS first")?;
        let numbers = words.iter().skip(1).map(|word| word.parse()).collect::<Result<Vec<u64>, _>>()?;
        let plan = self.plan.ok_or("no plan: say plan FILES DIRECTORIES first");
        match (words.first().copied(), numbers.as_slice()) {
            (Some("plan"), &[files, directories]) => {
                self.plan = Some(files::Plan { files, directories });
                Ok(String::new())
            }
            (Some("dirs"), []) => files::make_directories(client, plan?),
            (Some("files"), &[from, count, threads]) => files::put(client, from..from + count, threads, plan?),
            (Some("verify"), &[written, count]) => files::verify(client, written, count, plan?),
            (Some("stat"), &[written, count, threads]) => files::stat(client, written, count, threads, plan?),
            (Some("probe"), [number]) => files::probe(client, *number),
            (Some("pool"), &[chunks, chunk_bytes]) => {
                self.pool = named::Pool::store(client, chunks, chunk_bytes)?;
                Ok(format!("bytes={}", chunks * chunk_bytes))
            }
            (Some("named"), &[from, count, extents]) => self.pool.commit_files(client, from..from + count, extents),
            _ => Err(format!("unknown command; there are: {HELP}").into()),
        }
    }
}

fn main() {
    let mut driver = Driver::default();
    tessera_testkit::commands::serve(|line| driver.run(line));
}
