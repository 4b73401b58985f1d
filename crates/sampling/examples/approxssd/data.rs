//! Text and logs from a seed, on directories that stand for disks, and sources that are longer than these files.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use tessera_sampling::error::Error;
use tessera_sampling::estimate::{Population, Quantity};
use tessera_sampling::format::{Format, JsonLines, Text};
use tessera_sampling::layout::Layout;
use tessera_sampling::question::{Aggregate, KeyBy, Question};
use tessera_sampling::source::{Contents, FileIndex, LocalFiles, Source};
use tessera_sampling::tally::{Key, Tally, Totals};

pub const DISKS: usize = 8;
pub const FILES_OF_DISK: usize = 4;
/// A file has 74 units of 8 KiB, and so is a stratum of its own.
const FILE_BYTES: usize = 600_000;
/// Words that only one disk has.
const WORDS_OF_DISK: usize = 20;
const HOURS: usize = 168;

/// The applications of the paper's table 1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum App {
    WordCount,
    PageRank,
    RequestRate,
    PagePopularity,
}

impl App {
    pub const ALL: [App; 4] = [App::WordCount, App::PageRank, App::RequestRate, App::PagePopularity];

    pub fn name(self) -> &'static str {
        match self {
            App::WordCount => "WC",
            App::PageRank => "PR",
            App::RequestRate => "RR",
            App::PagePopularity => "PP",
        }
    }

    pub fn question(self) -> Question {
        let field = |name: &str| Some(KeyBy::Field(name.to_string()));
        let (key, value) = match self {
            App::WordCount => (Some(KeyBy::Word), None),
            App::PageRank => (Some(KeyBy::parse(r"/\[\[([^\]]+)\]\]/", true).expect("an expression")), None),
            App::RequestRate => (field("hour"), Some("requests".to_string())),
            App::PagePopularity => (field("page"), Some("requests".to_string())),
        };
        let aggregate = if value.is_some() { Aggregate::Sum } else { Aggregate::Count };
        Question { aggregate, key, value, filter: None }
    }

    pub fn quantity(self) -> Quantity {
        if self.is_text() { Quantity::Count } else { Quantity::Sum }
    }

    fn is_text(self) -> bool {
        matches!(self, App::WordCount | App::PageRank)
    }

    pub fn format(self) -> Arc<dyn Format> {
        let question = self.question().bind();
        if self.is_text() {
            Arc::new(Text::new(question).expect("a question to text"))
        } else {
            Arc::new(JsonLines::new(question))
        }
    }
}

/// The files of both data sets.
pub struct Data {
    text: Arc<LocalFiles>,
    logs: Arc<LocalFiles>,
}

impl Data {
    /// Opens the data in a directory, and makes it first if it is not there.
    pub fn open(directory: &Path) -> Data {
        let set = |name: &str, make: fn(&mut StdRng, usize, usize, usize) -> Vec<u8>| {
            let directory = directory.join(name);
            for disk in 0..DISKS {
                let disk_directory = directory.join(format!("disk-{disk}"));
                std::fs::create_dir_all(&disk_directory).expect("the directory can be made");
                for part in 0..FILES_OF_DISK {
                    let path = disk_directory.join(format!("part-{part}"));
                    if !path.exists() {
                        let mut rng = StdRng::seed_from_u64((disk * FILES_OF_DISK + part) as u64);
                        let made = make(&mut rng, disk, part, FILE_BYTES);
                        std::fs::write(&path, made).expect("the directory has room");
                    }
                }
            }
            let disk_of = |path: &Path| path.parent().expect("it lies on a disk").display().to_string();
            Arc::new(LocalFiles::open(&[directory], Some(&disk_of)).expect("the files were made"))
        };
        Data { text: set("text", text), logs: set("logs", logs) }
    }

    /// The data of an application, each file repeated so many times.
    pub fn source(&self, app: App, repeats: u64) -> Repeated {
        Repeated::new(if app.is_text() { &self.text } else { &self.logs }, repeats)
    }

    /// The true value of every group, counted from all records.
    pub fn truth(&self, app: App, repeats: u64) -> HashMap<Key, f64> {
        let (source, format) = (self.source(app, 1), app.format());
        let layout = Layout::of(&source, &*format, 1 << 20);
        let mut tally = Tally::whole(&layout, false);
        for (h, stratum) in layout.strata.iter().enumerate() {
            for i in 0..stratum.units {
                let block = format.load(&source, layout.unit(h, i)).expect("the file can be read");
                let mut unit = tally.unit(h, block.unit.size as f64);
                format.tally(&block, "", &mut unit).expect("records are well-formed");
            }
        }
        let totals = Totals::of([&tally]);
        let population = Population::new(&totals.strata, &totals.all, 0.95);
        let value = |group: Vec<_>| repeats as f64 * population.estimate(app.quantity(), &group).value;
        totals.groups().map(|(key, group)| (key, value(group))).collect()
    }
}

/// The largest groups.
pub fn top(truth: &HashMap<Key, f64>, count: usize) -> Vec<(Key, f64)> {
    let mut groups: Vec<(Key, f64)> = truth.iter().map(|(key, value)| (key.clone(), *value)).collect();
    groups.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    groups.truncate(count);
    groups
}

/// Zipf's law with exponent 1.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(len: usize) -> Zipf {
        let mut sum = 0.0;
        Zipf((1..=len).map(|rank| (sum += 1.0 / rank as f64, sum).1).collect())
    }

    fn draw(&self, rng: &mut StdRng) -> usize {
        let at = rng.random::<f64>() * self.0.last().expect("it is not empty");
        self.0.partition_point(|sum| *sum < at).min(self.0.len() - 1)
    }
}

/// Articles of 2 to 20 KB. A fifth of an article's words and links are its own choice; of each 20 words one belongs to the
/// disk, and one is a link.
fn text(rng: &mut StdRng, disk: usize, _: usize, len_bytes: usize) -> Vec<u8> {
    let (words, pages, own) = (Zipf::new(20_000), Zipf::new(5_000), Zipf::new(WORDS_OF_DISK));
    let mut out = Vec::with_capacity(len_bytes + 200);
    let (mut article_end, mut shift) = (0, 0);
    while out.len() < len_bytes {
        if out.len() >= article_end {
            article_end = out.len() + rng.random_range(2_000..20_000);
            shift = rng.random_range(0..20_000);
        }
        for _ in 0..rng.random_range(5..20) {
            let shift = if rng.random_bool(0.2) { shift } else { 0 };
            let word = match rng.random_range(0..20) {
                0 => format!("disk{disk}word{}", own.draw(rng)),
                1 => format!("[[page{}]]", (pages.draw(rng) + shift) % 5_000),
                _ => format!("w{}", (words.draw(rng) + shift) % 20_000),
            };
            out.extend_from_slice(word.as_bytes());
            out.push(b' ');
        }
        *out.last_mut().expect("a line has words") = b'\n';
    }
    out
}

/// A week of requests in the order of time, a quarter of it in each file of a disk; hours of the day differ fourfold.
fn logs(rng: &mut StdRng, _: usize, part: usize, len_bytes: usize) -> Vec<u8> {
    let pages = Zipf::new(20_000);
    let mut out = Vec::with_capacity(len_bytes + 200);
    let hours = HOURS / FILES_OF_DISK;
    let weight = |hour: usize| 1.0 + 0.6 * (hour as f64 * std::f64::consts::TAU / 24.0).sin();
    let all: f64 = (part * hours..(part + 1) * hours).map(weight).sum();
    let mut end = 0.0;
    for hour in part * hours..(part + 1) * hours {
        end += len_bytes as f64 * weight(hour) / all;
        while (out.len() as f64) < end {
            // Few requests of most pages and many of some, as counts of an hour are.
            let requests = (1.0 / rng.random_range(0.01f64..1.0)).round();
            let page = pages.draw(rng);
            writeln!(out, r#"{{"hour":{hour},"page":"page{page}","requests":{requests}}}"#).expect("memory");
        }
    }
    out
}

/// A source of which each file holds the same bytes several times.
#[derive(Clone)]
pub struct Repeated {
    files: Arc<LocalFiles>,
    contents: Contents,
}

impl Repeated {
    fn new(files: &Arc<LocalFiles>, repeats: u64) -> Repeated {
        let mut contents = files.contents().clone();
        contents.files.iter_mut().for_each(|file| file.len_bytes *= repeats);
        contents.runs.iter_mut().for_each(|run| run.len_bytes *= repeats);
        Repeated { files: files.clone(), contents }
    }
}

impl Source for Repeated {
    fn contents(&self) -> &Contents {
        &self.contents
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        self.files.check_unchanged()
    }

    fn read_at(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let own = self.files.files()[file as usize].len_bytes;
        let left = self.contents.files[file as usize].len_bytes.saturating_sub(offset);
        let want = (out.len() as u64).min(left) as usize;
        let mut done = 0;
        while done < want {
            done += self.files.read_at(file, (offset + done as u64) % own, &mut out[done..want])?;
        }
        Ok(want)
    }
}
