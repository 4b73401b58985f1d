//! The whole library against the cluster in memory: threads, pipeline, caches, handles.

use crate::context::Context;
use crate::test_drive::{data, view_of};
use crate::transport::{Done, Transport};
use crate::*;
use bytes::Bytes;
use parking_lot::Mutex;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tessera_manager::config::Config;
use tessera_manager::shell::{ManagerServer, ServeOptions};
use tessera_net::{BufferPool, Endpoint};
use tessera_testkit::Cluster;
use tessera_wire::meta::{MakeDir, Rename, Unlink};
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Code, Kind, hex};

/// A cluster whose answers come from another thread, as from a connection.
struct Loopback {
    cluster: Arc<Mutex<Cluster>>,
    queue: Mutex<mpsc::Sender<(Call, Done)>>,
}

impl Loopback {
    fn start(cluster: Cluster) -> Arc<Self> {
        let (sender, receiver) = mpsc::channel::<(Call, Done)>();
        let cluster = Arc::new(Mutex::new(cluster));
        let answering = cluster.clone();
        std::thread::spawn(move || {
            for (call, done) in receiver {
                let result = answering.lock().call(&call);
                done(Answer { token: call.token, result });
            }
        });
        Arc::new(Loopback { cluster, queue: Mutex::new(sender) })
    }
}

impl Transport for Loopback {
    fn call(&self, call: Call, done: Done) {
        self.queue.lock().send((call, done)).unwrap();
    }
}

pub(crate) fn client(mut cluster: Cluster, options: Options) -> (Client, Arc<Mutex<Cluster>>) {
    let view = view_of(&mut cluster);
    let transport = Loopback::start(cluster);
    let cluster = transport.cluster.clone();
    let pool = BufferPool::limited(64 << 20, options.memory_bytes as usize);
    let context = Context::start(transport, pool, view, options).unwrap();
    (Client { context, directories: Default::default(), cluster_doubt: None }, cluster)
}

pub(crate) fn path(text: &str) -> StorePath {
    StorePath::parse(text).unwrap()
}

pub(crate) fn read(client: &Client, name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    client.get(&path(name), Sink::Writer(&mut out), GetOptions::default()).unwrap();
    out
}

#[test]
fn files_of_all_sizes_come_back_from_every_kind_of_source() {
    let (client, cluster) = client(Cluster::new(8, 1), Options { write_window_bytes: 8 << 20, ..Options::default() });
    for (i, len) in [0, 1, 4096, 200_000, 300_000, 5_000_000, 40_000_000].into_iter().enumerate() {
        let bytes = data(len, i as u64 + 1);
        let name = path(&format!("tess:/f{i}"));
        client.put(&name, &bytes[..], PutOptions::default()).unwrap();
        assert!(read(&client, &name.to_string()) == bytes, "{len} from a slice");
        let again = client.put(&name, Bytes::from(bytes.clone()), PutOptions::default()).unwrap();
        assert_eq!((again.number, again.sent_bytes), (2, 0), "{len} from memory, known");
        let reader: &mut (dyn Read + Send) = &mut &bytes[..];
        let done = client.put(&name, Source::Reader { reader, len_bytes: None }, PutOptions::default()).unwrap();
        assert_eq!(done.input_bytes, len as u64);
        let mut out = vec![0; len];
        client.get(&name, Sink::Slice(&mut out), GetOptions::default()).unwrap();
        assert!(out == bytes, "{len} from a reader");
        let mut lent = Vec::new();
        let mut take = |piece: Bytes| {
            lent.extend_from_slice(&piece);
            Ok(())
        };
        client.get(&name, Sink::Lend(&mut take), GetOptions::default()).unwrap();
        assert!(lent == bytes, "{len} lent");
    }
    cluster.lock().check_all_stored();
}

#[test]
fn many_writers_share_a_client() {
    let (client, cluster) = client(Cluster::new(8, 1), Options::default());
    std::thread::scope(|scope| {
        for writer in 0..16u64 {
            let client = client.clone();
            scope.spawn(move || {
                for i in 0..20u64 {
                    let name = format!("tess:/w{writer}-{i}");
                    client.put(&path(&name), &data(4096, writer * 100 + i)[..], PutOptions::default()).unwrap();
                }
            });
        }
    });
    for writer in 0..16u64 {
        assert!(read(&client, &format!("tess:/w{writer}-7")) == data(4096, writer * 100 + 7));
    }
    let cluster = cluster.lock();
    assert_eq!((cluster.count("AllocateChunks"), cluster.count("Commit")), (0, 320));
    // Each writer may open files until the first preallocated chunks arrive.
    assert!(cluster.count("OpenWrite") <= 48, "one trip for most small files: {}", cluster.count("OpenWrite"));
    assert!(cluster.count("Resolve") <= 16, "the directory is known under a lease: {}", cluster.count("Resolve"));
}

#[test]
fn nodes_die_while_files_are_written_and_read() {
    let (client, cluster) = client(Cluster::new(8, 1), Options { write_window_bytes: 4 << 20, ..Options::default() });
    let bytes = data(20_000_000, 1);
    let mut seen = 0;
    let mut progress = |p: Progress| {
        seen = p.done;
        if p.done > 5_000_000 {
            cluster.lock().node(3).down = true;
        }
    };
    let options = PutOptions { progress: Some(&mut progress), ..PutOptions::default() };
    client.put(&path("tess:/f"), Bytes::from(bytes.clone()), options).unwrap();
    assert_eq!(seen, 20_000_000);
    cluster.lock().node(5).down = true;
    assert!(read(&client, "tess:/f") == bytes);
}

#[test]
fn ranges_versions_and_handles() {
    let (client, _cluster) = client(Cluster::new(8, 1), Options::default());
    let (old, new) = (data(3_000_000, 1), data(2_000_000, 2));
    client.put(&path("tess:/f"), &old[..], PutOptions::default()).unwrap();
    let ino = client.stat(&path("tess:/f")).unwrap().ino;
    let handle = client.read_inode(ino, 0, 0..u64::MAX).unwrap();
    client.put(&path("tess:/f"), &new[..], PutOptions::default()).unwrap();
    let mut out = vec![0; 1000];
    assert_eq!(handle.read_at(2_999_500, &mut out).unwrap(), 500);
    assert_eq!(out[..500], old[2_999_500..]);
    let options = GetOptions { version: 1, range: Some(1_000_000..1_500_000), ..GetOptions::default() };
    let mut out = Vec::new();
    let (opened, len) = client.get(&path("tess:/f"), Sink::Writer(&mut out), options).unwrap();
    assert_eq!((opened.version.number, len), (1, 500_000));
    assert!(out == old[1_000_000..1_500_000]);
    let empty = GetOptions { range: Some(5..5), ..GetOptions::default() };
    assert_eq!(client.get(&path("tess:/f"), Sink::Writer(&mut Vec::new()), empty).unwrap().1, 0);
    assert_eq!(client.versions(&path("tess:/f")).unwrap().len(), 2);
    std::thread::scope(|scope| {
        for i in 0..8u64 {
            let (handle, old) = (&handle, &old);
            scope.spawn(move || {
                let at = i as usize * 300_000;
                let mut out = vec![0; 70_000];
                assert_eq!(handle.read_at(at as u64, &mut out).unwrap(), 70_000);
                assert!(out == old[at..at + 70_000]);
            });
        }
    });
}

#[test]
fn open_files_are_written_piece_by_piece_patched_and_synced() {
    let (client, cluster) = client(Cluster::new(8, 1), Options::default());
    let mut expected = data(1_000_000, 1);
    let mut file = client.open_write(&path("tess:/f"), PutOptions::default()).unwrap();
    expected.chunks(77_777).for_each(|piece| file.write(piece).unwrap());
    assert!(client.get(&path("tess:/f"), Sink::Writer(&mut Vec::new()), GetOptions::default()).is_err());
    file.sync().unwrap();
    assert!(read(&client, "tess:/f") == expected);
    file.write(b"more").unwrap();
    expected.extend_from_slice(b"more");
    file.finish().unwrap();
    assert!(read(&client, "tess:/f") == expected);

    let ino = client.stat(&path("tess:/f")).unwrap().ino;
    let mut file = client.open_inode(ino, true, None).unwrap();
    // Out of order, and over bytes just written.
    for (at, len) in [(500_000usize, 10_000usize), (100, 50), (505_000, 100), (1_200_000, 10), (0, 1)] {
        let patch = data(len, at as u64);
        file.write_at(at as u64, &patch).unwrap();
        if expected.len() < at + len {
            expected.resize(at + len, 0);
        }
        expected[at..at + len].copy_from_slice(&patch);
    }
    file.finish().unwrap();
    assert!(read(&client, "tess:/f") == expected);

    let mut dropped = client.open_write(&path("tess:/g"), PutOptions::default()).unwrap();
    dropped.write(b"never").unwrap();
    drop(dropped);
    assert_eq!(cluster.lock().names(), [b"f"]);
}

/// `redundancy=auto` stores a file of up to 128 KiB as copies, for which three hosts suffice, also if it is written in parts.
#[test]
fn a_short_file_that_is_patched_is_stored_as_copies() {
    for (hosts, grows) in [(4, false), (8, true)] {
        let (client, cluster) = client(Cluster::new(hosts, 1), Options::default());
        let mut expected = data(30_000, 1);
        client.put(&path("tess:/f"), &expected[..], PutOptions::default()).unwrap();
        let ino = client.stat(&path("tess:/f")).unwrap().ino;
        let mut file = client.open_inode(ino, true, None).unwrap();
        expected = data(30_000, 2);
        file.write_at(0, &expected).unwrap();
        file.set_len(29_999).unwrap();
        expected.truncate(29_999);
        file.sync().unwrap();
        if grows {
            let more = data(200_000, 3);
            file.write_at(29_999, &more).unwrap();
            expected.extend_from_slice(&more);
        }
        file.finish().unwrap();
        assert!(read(&client, "tess:/f") == expected);
        let cluster = cluster.lock();
        let (classes, chunks) = (cluster.classes(), cluster.committed());
        for chunk in &chunks {
            let class = if chunk.len_bytes == 30_000 { "replica:3" } else { "ec:4+2" };
            assert_eq!(classes[&chunk.class_id].spec, class, "{chunk:?}");
        }
        assert_eq!(chunks.iter().any(|chunk| chunk.len_bytes != 30_000), grows);
    }
}

#[test]
fn cancelled_writes_and_failing_sources_leave_nothing() {
    let (client, cluster) = client(Cluster::new(8, 1), Options { write_window_bytes: 1 << 20, ..Options::default() });
    let cancel = Cancel::default();
    let mut stop = |p: Progress| {
        if p.done > 3_000_000 {
            cancel.cancel();
            cluster.lock().nodes.iter_mut().for_each(|node| node.down = true);
        }
    };
    let options = PutOptions { progress: Some(&mut stop), cancel: cancel.clone(), ..PutOptions::default() };
    let error = client.put(&path("tess:/f"), &data(20_000_000, 1)[..], options).unwrap_err();
    assert!(matches!(error, Error::File(FileError { cause: Cause::Cancelled, .. })), "{error}");

    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(out.len().min(100_000)).ok_or_else(|| std::io::Error::other("cable pulled"))?;
            Ok(out.len().min(100_000))
        }
    }
    let source = Source::Reader { reader: &mut Broken(2_000_000), len_bytes: None };
    let error = client.put(&path("tess:/g"), source, PutOptions::default()).unwrap_err();
    assert!(
        matches!(&error, Error::File(FileError { cause: Cause::Input(message), .. }) if message.contains("cable")),
        "{error}"
    );
    assert!(cluster.lock().names().is_empty());
}

#[test]
fn optimistic_redundancy_follows_in_the_background() {
    let cluster = Cluster::new(8, 1).with("redundancy", "ec:4+2").with("durability", "optimistic");
    let (client, cluster) = client(cluster, Options::default());
    let bytes = data(10_000_000, 1);
    client.put(&path("tess:/f"), &bytes[..], PutOptions::default()).unwrap();
    assert_eq!(client.flush(std::time::Duration::from_secs(30)), 0);
    assert!(cluster.lock().chunks().iter().all(|chunk| chunk.missing.is_empty()));
    cluster.lock().check_all_stored();
}

#[test]
fn directories_names_and_attributes() {
    let (client, _cluster) = client(Cluster::new(4, 1), Options::default());
    client.mkdir_all(&path("tess:/a/b/c")).unwrap();
    client.mkdir_all(&path("tess:/a/b/c")).unwrap();
    assert!(client.mkdir(&path("tess:/a"), false).is_err());
    for i in 0..5 {
        client.put(&path(&format!("tess:/a/b/f{i}")), &b"x"[..], PutOptions::default()).unwrap();
    }
    let names: Vec<Vec<u8>> = client.list(&path("tess:/a/b")).unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, [&b"c"[..], b"f0", b"f1", b"f2", b"f3", b"f4"]);
    client.rename(&path("tess:/a/b"), &path("tess:/z"), false).unwrap();
    assert_eq!(read(&client, "tess:/z/f3"), b"x");
    let gone = client.get(&path("tess:/a/b/f3"), Sink::Writer(&mut Vec::new()), GetOptions::default()).unwrap_err();
    assert_eq!(gone.code(), tessera_wire::Code::NotFound);
    client.set_hints(&path("tess:/z"), &[("chunking".into(), "fixed:1048576".into())]).unwrap();
    assert_eq!(client.hints(&path("tess:/z")).unwrap(), [("chunking".to_string(), "fixed:1M".to_string())]);
    let wrong = client.set_hints(&path("tess:/z"), &[("redundancy".into(), "raid0".into())]).unwrap_err();
    assert!(wrong.to_string().contains("allowed"), "{wrong}");
    let mut removed = 0;
    client.remove_all(&path("tess:/z"), &mut removed).unwrap();
    assert_eq!(removed, 7);
    // More names than one request removes.
    for i in 0..1_030 {
        client.mkdir_all(&path(&format!("tess:/many/d{i}"))).unwrap();
    }
    client.remove_all(&path("tess:/many"), &mut removed).unwrap();
    assert_eq!(removed, 7 + 1_031);
    assert_eq!(client.list(&StorePath::root()).unwrap().len(), 1);
}

/// A page is asked for when the one before has been taken, and what is removed meanwhile ends nothing.
#[test]
fn a_long_directory_comes_page_by_page() {
    let config = Config { max_list_entries: 3, ..tessera_testkit::config() };
    let (client, cluster) = client(Cluster::with_config(4, 1, config), Options::default());
    (0..7).for_each(|i| drop(client.mkdir_all(&path(&format!("tess:/a/d{i}"))).unwrap()));
    let name = |entry: tessera_wire::meta::Dirent| String::from_utf8(entry.name).unwrap();
    let mut pages = client.list_pages(&path("tess:/a")).unwrap();
    let mut next = || Some(pages.next()?.unwrap().into_iter().map(name).collect::<Vec<_>>());
    let before = cluster.lock().count("List");
    assert_eq!(next().unwrap(), ["d0", "d1", "d2"]);
    assert_eq!(cluster.lock().count("List"), before + 1);
    client.unlink(&path("tess:/a/d2"), true).unwrap();
    client.unlink(&path("tess:/a/d4"), true).unwrap();
    assert_eq!(next().unwrap(), ["d3", "d5", "d6"]);
    assert_eq!(next(), None);
    assert_eq!(client.list(&path("tess:/a")).unwrap().len(), 5);
    let gone = client.list_pages(&path("tess:/b")).err().expect("there is no such directory");
    assert_eq!(gone.code(), Code::NotFound);
}

/// Whoever removes a file gets no directory removed, whenever another client puts one in the file's place.
#[test]
fn a_removal_of_a_file_leaves_alone_the_directory_that_took_its_place() {
    // Of the requests of the removal: before which one the directory is moved.
    for (kind, before) in [(Kind::Resolve, 1), (Kind::Resolve, 2), (Kind::Unlink, 1)] {
        let (client, cluster) = client(Cluster::new(4, 1), Options::default());
        client.mkdir(&path("tess:/d"), false).unwrap();
        for file in ["tess:/a", "tess:/d/f"] {
            client.put(&path(file), &b"x"[..], PutOptions::default()).unwrap();
        }
        let is_moved = Arc::new(AtomicBool::new(false));
        {
            let (mut cluster, is_moved) = (cluster.lock(), is_moved.clone());
            (1..before).for_each(|_| cluster.before(kind, |_| ()));
            cluster.before(kind, move |cluster| {
                let (unlink_id, op_id) = (cluster.op(), cluster.op());
                let (from_name, to_name) = (b"d".to_vec(), b"a".to_vec());
                let unlink = Unlink { op_id: unlink_id, parent: 1, name: to_name.clone(), directory: false };
                let rename = Rename { op_id, from_parent: 1, from_name, to_parent: 1, to_name, ..Rename::default() };
                is_moved.store(cluster.ask(&unlink).is_ok() && cluster.ask(&rename).is_ok(), Ordering::Relaxed);
            });
        }
        let mut removed = 0;
        let done = client.remove(&path("tess:/a"), false, &mut removed).map_err(|error| error.code());
        if is_moved.load(Ordering::Relaxed) {
            assert_eq!((done, removed), (Err(Code::IsDirectory), 0), "before {kind:?} {before}");
            assert_eq!(read(&client, "tess:/a/f"), b"x");
        } else {
            assert_eq!((done, removed, kind), (Ok(()), 1, Kind::Resolve), "before {kind:?} {before}");
        }
    }
}

/// Another client moves a directory while `rm -r` runs: what is in it stays, and everything else goes.
#[test]
fn a_recursive_removal_leaves_alone_what_was_moved_away() {
    // Moves (directory, name) to the name `keep` of the root, before the List with this number.
    let removed_while_moved = |top: &str,
                               before: usize,
                               parent: &str,
                               name: &str,
                               expected: Result<u64, Code>,
                               kept: &[&str]| {
        let (client, cluster) = client(Cluster::new(4, 1), Options::default());
        for directory in ["tess:/d/a", "tess:/d/b/c", "tess:/d/e"] {
            client.mkdir_all(&path(directory)).unwrap();
            client.put(&path(&format!("{directory}/f")), &b"x"[..], PutOptions::default()).unwrap();
        }
        let from_parent = client.stat(&path(parent)).unwrap().ino;
        let (from_name, to_name) = (name.as_bytes().to_vec(), b"keep".to_vec());
        let rename = Rename { from_parent, from_name, to_parent: 1, to_name, ..Rename::default() };
        {
            let mut cluster = cluster.lock();
            (1..before).for_each(|_| cluster.before(Kind::List, |_| ()));
            cluster.before(Kind::List, move |cluster| {
                let op_id = cluster.op();
                cluster.ask(&Rename { op_id, ..rename }).unwrap();
            });
        }
        let mut removed = 0;
        let done = client.remove_all(&path(top), &mut removed);
        if let Err(error) = &done {
            assert!(error.to_string().contains(top), "{error}");
        }
        assert_eq!(done.map(|()| removed).map_err(|error| error.code()), expected, "{parent} {name} before {before}");
        assert!(expected.is_err() || client.stat(&path(top)).is_err(), "{parent} {name} before {before}");
        for file in kept {
            assert_eq!(read(&client, file), b"x", "{parent} {name} before {before}");
        }
    };
    let moved_away = |before: usize, parent: &str, name: &str, expected: Result<u64, Code>, kept: &[&str]| {
        removed_while_moved("tess:/d", before, parent, name, expected, kept);
    };
    // The directories are listed in this order, each a second time once it is empty: d a a b c c b e e d.
    moved_away(4, "tess:/d", "b", Ok(5), &["tess:/keep/c/f"]);
    moved_away(5, "tess:/d", "b", Ok(5), &["tess:/keep/c/f"]);
    moved_away(5, "tess:/d/b", "c", Ok(6), &["tess:/keep/f"]);
    moved_away(8, "tess:/d", "e", Ok(6), &["tess:/keep/f"]);
    moved_away(4, "tess:/", "d", Err(Code::VersionConflict), &["tess:/keep/b/c/f", "tess:/keep/e/f"]);
    // Above the directory.
    removed_while_moved("tess:/d/b", 1, "tess:/", "d", Err(Code::VersionConflict), &["tess:/keep/b/c/f"]);
    removed_while_moved("tess:/d/b", 2, "tess:/", "d", Err(Code::VersionConflict), &["tess:/keep/b/c/f"]);
}

/// P14: hints and paths are checked before any request is sent.
#[test]
fn bad_hints_and_paths_change_nothing() {
    let (client, cluster) = client(Cluster::new(4, 1), Options::default());
    let options = PutOptions { hints: vec![("colour".into(), "red".into())], ..PutOptions::default() };
    assert!(client.put(&path("tess:/f"), &b"x"[..], options).unwrap_err().to_string().contains("redundancy"));
    let error = client.put(&StorePath::root(), &b"x"[..], PutOptions::default()).unwrap_err();
    assert_eq!(error.code(), tessera_wire::Code::Invalid);
    assert!(cluster.lock().calls.is_empty());
}

/// Managers over real sockets: after a restart, that of another cluster answers at the address.
#[test]
fn a_running_client_is_refused_by_another_cluster() {
    let scratch = tempfile::tempdir().unwrap();
    let listen = Endpoint::Unix(scratch.path().join("s"));
    let start = |id: u8| {
        let dir = scratch.path().join(id.to_string());
        let options = ServeOptions::new(&dir, std::slice::from_ref(&listen), Config::default());
        ManagerServer::start(ServeOptions { cluster_id: Some([id; 16]), ..options }).unwrap()
    };
    let connect = || Client::connect(&listen.to_string(), Options::default()).unwrap();
    let make = |client: &Client, name: &str| {
        let request = MakeDir { op_id: client.op_id(), parent: 1, name: name.into(), ..MakeDir::default() };
        client.ask(&request)
    };

    let first = start(1);
    let client = connect();
    make(&client, "a").unwrap();
    assert!(first.stop().is_none());

    let second = start(2);
    let asked = Instant::now();
    let error = make(&client, "b").unwrap_err();
    assert_eq!(error.code(), Code::WrongCluster, "{error}");
    for words in [hex(&[1; 16]), hex(&[2; 16]), "restart the client".into()] {
        assert!(error.message.contains(&words), "{error}");
    }
    assert!(asked.elapsed() < Duration::from_secs(5), "the request is not repeated");
    assert_eq!(connect().status().unwrap().directories, 1, "only the root");
    assert!(second.stop().is_none());

    let _first = start(1);
    // The dialer does not try the address again at once after a failure.
    while let Err(error) = make(&client, "c") {
        assert_eq!(error.code(), Code::WrongCluster, "{error}");
        assert!(asked.elapsed() < Duration::from_secs(30), "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(connect().status().unwrap().directories, 3, "the root, a and c");
}

/// P14.
#[test]
fn one_of_the_managers_named_suffices_and_malformed_lists_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let listen = Endpoint::Unix(scratch.path().join("s"));
    let options = ServeOptions::new(&scratch.path().join("m"), std::slice::from_ref(&listen), Config::default());
    let manager = ManagerServer::start(ServeOptions { cluster_id: Some([1; 16]), ..options }).unwrap();
    let list = format!("unix:{},{listen},127.0.0.1:1", scratch.path().join("gone").display());
    let client = Client::connect(&list, Options::default()).unwrap();
    assert_eq!(client.status().unwrap().directories, 1);
    assert!(manager.stop().is_none());
    let quick = || Options { manager_timeout_ms: 1_000, ..Options::default() };
    let error = Client::connect(&list, quick()).err().unwrap();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().starts_with(&format!("manager {list}: cannot reach ")), "{error}");
    for text in ["", "a:1,,b:2", "a:1,a:1", "nowhere"] {
        assert_eq!(Client::connect(text, quick()).err().unwrap().code(), Code::Invalid, "{text:?}");
    }
}

/// As a mount does that keeps versions open under leases: it drops them when all leases end. A node's address may be another cluster's by now.
#[test]
fn a_version_that_is_dropped_as_leases_end_stops_no_request() {
    let scratch = tempfile::tempdir().unwrap();
    let start = |id: u8| {
        let listen = Endpoint::Unix(scratch.path().join(format!("s{id}")));
        let dir = scratch.path().join(id.to_string());
        let options = ServeOptions::new(&dir, std::slice::from_ref(&listen), Config::default());
        (listen, ManagerServer::start(ServeOptions { cluster_id: Some([id; 16]), ..options }).unwrap())
    };
    let ((here, _first), (elsewhere, _second)) = (start(1), start(2));
    let client = Client::connect(&here.to_string(), Options::default()).unwrap();
    let (op_id, kind) = (client.op_id(), tessera_wire::InodeKind::File as i32);
    let new = tessera_wire::meta::MakeNode { op_id, parent: 1, name: b"f".to_vec(), kind, ..Default::default() };
    let ino = client.ask(&new).unwrap().attr.unwrap().ino;
    let kept = Mutex::new(Some(client.read_inode(ino, 0, 0..100).unwrap()));
    client.on_recall(move |inos, answer| {
        if inos.is_none() {
            drop(kept.lock().take());
        }
        answer();
    });
    let peer = tessera_wire::rpc::Peer::Address(elsewhere.to_string());
    let call = Call::new(peer, 1, &tessera_wire::meta::GetStatus {}, Vec::new(), 5_000);
    let (sender, receiver) = mpsc::channel();
    let refused = sender.clone();
    client.context.transport.call(call, Box::new(move |answer| refused.send(answer.result.map(drop)).unwrap()));
    let error = receiver.recv_timeout(Duration::from_secs(30)).expect("the call ends").unwrap_err();
    assert_eq!(error.code(), Code::WrongCluster);
    std::thread::spawn(move || sender.send(client.status().map(drop).map_err(|_| tessera_wire::Error::default())));
    receiver.recv_timeout(Duration::from_secs(30)).expect("the manager is asked").unwrap();
}
