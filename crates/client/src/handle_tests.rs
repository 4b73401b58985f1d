//! Open files against bytes in memory: what a handle was told is what a reader gets, whatever the order.

use crate::test_drive::data;
use crate::tests::{client, path, read};
use crate::*;
use tessera_testkit::Cluster;

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// An open file, and the bytes that it must have.
struct Model {
    file: WriteHandle,
    bytes: Vec<u8>,
    /// Where the next write goes.
    at: usize,
    /// It may go back and set the length.
    patches: bool,
    trace: Vec<String>,
}

impl Model {
    fn new(file: WriteHandle, bytes: Vec<u8>, patches: bool) -> Model {
        Model { file, bytes, at: 0, patches, trace: Vec::new() }
    }

    fn step(&mut self, random: &mut Random) {
        let least = if self.patches { 0 } else { self.at };
        let to = match random.below(4) {
            0 | 1 => self.at,
            2 => self.bytes.len().max(least),
            _ => least + random.below(4_000),
        };
        let len = random.below(600);
        match random.below(7) {
            0 | 1 => self.write(to, &data(len, (to + len) as u64)),
            2 => self.clear(to, len),
            3 if self.patches => self.set_len(to),
            4 => self.sync(),
            _ => self.skip(to),
        }
        assert_eq!(self.file.len_bytes(), self.bytes.len() as u64, "{:?}", self.trace);
    }

    fn reach(&mut self, end: usize) {
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.at = end;
    }

    fn write(&mut self, to: usize, bytes: &[u8]) {
        self.trace.push(format!("write {}+{}", to, bytes.len()));
        match to == self.at {
            true => self.file.write(bytes).unwrap(),
            false => self.file.write_at(to as u64, bytes).unwrap(),
        }
        self.reach(to + bytes.len());
        self.bytes[to..to + bytes.len()].copy_from_slice(bytes);
    }

    fn clear(&mut self, to: usize, len: usize) {
        self.trace.push(format!("clear {to}+{len}"));
        self.file.clear(to as u64..(to + len) as u64).unwrap();
        if len > 0 {
            self.reach(to + len);
            self.bytes[to..to + len].fill(0);
        }
    }

    fn skip(&mut self, to: usize) {
        self.trace.push(format!("skip {to}"));
        self.file.skip_to(to as u64).unwrap();
        self.reach(to);
    }

    fn set_len(&mut self, len: usize) {
        self.trace.push(format!("length {len}"));
        self.file.set_len(len as u64).unwrap();
        self.bytes.resize(len, 0);
    }

    fn sync(&mut self) {
        self.trace.push("sync".into());
        self.file.sync().unwrap();
        self.patches = true;
    }

    fn finish(self, client: &Client, name: &str) {
        self.file.finish().unwrap();
        let got = read(client, name);
        assert_eq!(got.len(), self.bytes.len(), "{name}: {:?}", self.trace);
        let wrong = got.iter().zip(&self.bytes).position(|(got, right)| got != right);
        assert_eq!(wrong, None, "{name}: {:?}", self.trace);
    }
}

type Step = (&'static str, fn(&mut Model));

fn patching(client: &Client, name: &str, bytes: &[u8]) -> WriteHandle {
    client.put(&path(name), bytes, PutOptions::default()).unwrap();
    client.open_inode(client.stat(&path(name)).unwrap().ino, true, None).unwrap()
}

#[test]
fn a_file_has_the_bytes_and_the_length_that_a_handle_gave_it() {
    for commit_extents in [3, 8_192] {
        let (client, _) = client(Cluster::new(4, 1), Options { commit_extents, ..Options::default() });
        for seed in 0..300 {
            let (mut random, name) = (Random(seed), format!("tess:/{seed}"));
            let bytes = data(random.below(3_000), seed);
            let mut model = match random.below(3) {
                0 => Model::new(client.open_write(&path(&name), PutOptions::default()).unwrap(), Vec::new(), false),
                _ => Model::new(patching(&client, &name, &bytes), bytes, true),
            };
            (0..1 + random.below(12)).for_each(|_| model.step(&mut random));
            model.finish(&client, &name);
        }
    }
}

/// What a length cut off is gone, also if the file goes on behind it before the next commit.
#[test]
fn bytes_that_were_cut_off_do_not_come_back() {
    let (client, _) = client(Cluster::new(4, 1), Options::default());
    let goes_on: [Step; 4] = [
        ("tess:/write", |model| model.write(50, b"more")),
        ("tess:/clear", |model| model.clear(50, 10)),
        ("tess:/skip", |model| model.skip(50)),
        ("tess:/length", |model| model.set_len(50)),
    ];
    for (name, go_on) in goes_on {
        let bytes = data(100, 1);
        let mut model = Model::new(patching(&client, name, &bytes), bytes, true);
        model.set_len(10);
        go_on(&mut model);
        model.finish(&client, name);
    }
}

/// A file that ends where its handle was told to go has that length, also if the handle was there, and if another writer cut it.
#[test]
fn a_file_ends_where_its_handle_went_last() {
    let (client, _) = client(Cluster::new(4, 1), Options::default());
    let before: [Step; 5] = [
        ("tess:/write", |model| model.write(0, &data(60, 2))),
        ("tess:/beyond", |model| model.write(140, &data(20, 3))),
        ("tess:/clear", |model| model.clear(20, 40)),
        ("tess:/skip", |model| model.skip(160)),
        ("tess:/length", |model| {
            model.write(0, &data(60, 2));
            model.set_len(10);
        }),
    ];
    for (name, go) in before {
        let bytes = data(100, 1);
        let mut model = Model::new(patching(&client, name, &bytes), bytes, true);
        go(&mut model);
        model.sync();
        let ino = client.stat(&path(name)).unwrap().ino;
        let mut other = client.open_inode(ino, true, None).unwrap();
        other.set_len(5).unwrap();
        other.finish().unwrap();
        model.bytes.truncate(5);
        model.skip(model.at);
        model.finish(&client, name);
    }
}

/// A file has at most 2^63 - 1 bytes. More is refused, and what was written before stays.
#[test]
fn offsets_beyond_the_longest_file_are_refused() {
    let (client, _) = client(Cluster::new(4, 1), Options::default());
    let mut file = patching(&client, "tess:/f", b"old");
    file.write_at(0, b"new").unwrap();
    let (last, end) = (i64::MAX as u64 - 1, i64::MAX as u64);
    assert!(file.write_at(last, b"xy").is_err() && file.write_at(u64::MAX, b"xy").is_err());
    assert!(file.skip_to(end + 1).is_err() && file.set_len(end + 1).is_err() && file.clear(5..end + 1).is_err());
    file.write(b" bytes").unwrap();
    file.finish().unwrap();
    assert_eq!(read(&client, "tess:/f"), b"new bytes");
}

/// A session that lasts long counts more bytes of holes than a number holds.
#[test]
fn a_long_session_may_clear_a_long_file_often() {
    let (client, _) = client(Cluster::new(4, 1), Options::default());
    let mut file = patching(&client, "tess:/f", b"old");
    let end = i64::MAX as u64;
    for _ in 0..4 {
        file.clear(0..end).unwrap();
    }
    file.set_len(5).unwrap();
    file.finish().unwrap();
    assert_eq!(read(&client, "tess:/f"), [0; 5]);
}

/// Pieces in any order, more of them than one commit has: they are staged in order.
#[test]
fn many_pieces_may_be_written_backwards_before_a_commit() {
    for [first, second] in [[0, 0], [0, 1], [1, 0]] {
        let options = Options { commit_extents: 4, ..Options::default() };
        let (client, _) = client(Cluster::new(4, 1), options);
        let bytes = data(3_000, 1);
        let mut model = Model::new(patching(&client, "tess:/f", &bytes), bytes, true);
        let mut write = |from: usize, is_backward: usize| {
            for i in 0..11 {
                let at = if is_backward == 1 { 10 - i } else { i };
                model.write(from + 100 * at, &data(50, (from + i) as u64));
            }
        };
        write(1_500, first);
        write(20, second);
        model.finish(&client, "tess:/f");
    }
}
