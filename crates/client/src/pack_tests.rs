//! Small files that share packs, against the cluster in memory.

use crate::test_drive::data;
use crate::tests::{client, path, read};
use crate::*;
use std::time::Duration;
use tessera_testkit::Cluster;
use tessera_wire::Code;
use tessera_wire::meta::MaintenanceJob;

fn small(name: &str, content: Vec<u8>) -> SmallPut {
    SmallPut { path: path(name), content: content.into(), mtime_ns: 7, owner: Owner::default() }
}

/// Memory for any files of these tests.
fn held(client: &Client) -> Held {
    client.hold(1 << 20, &Cancel::default()).unwrap()
}

#[test]
fn small_files_share_chunks_and_come_back() {
    let (client, cluster) = client(Cluster::new(8, 1), Options::default());
    let content = |i: u64| match i % 40 {
        0 => Vec::new(),
        1 => vec![0; 5_000],
        2 => data(100_000, 1),
        3 => vec![0; 2_000],
        _ => data(1 + 97 * i as usize, i),
    };
    let files = |from| (from..200).map(|i| small(&format!("tess:/f{i}"), content(i))).collect();
    let done = client.put_small(files(0), &[], &held(&client), &Cancel::default());
    let new: u64 = done.iter().map(|done| done.as_ref().unwrap().new_bytes).sum();
    let distinct: u64 = (0..200).filter(|i| !matches!(i % 40, 0..4)).map(|i| content(i).len() as u64).sum();
    assert!(
        (distinct + 100_000..distinct + 520_000).contains(&new),
        "zeros are holes, and equal files of a pack are stored once"
    );
    let opened = client.stat(&path("tess:/f77")).unwrap();
    assert_eq!((opened.size_bytes, opened.mtime_ns, opened.version_number), (content(77).len() as u64, 7, 1));
    for i in 0..200 {
        assert!(read(&client, &format!("tess:/f{i}")) == content(i), "file {i}");
    }
    let commits = cluster.lock().count("Commit");
    assert!(commits < 10, "{commits} commits of 200 files");
    // Again: the packs are known, each file has a second version.
    let again = client.put_small(files(0), &[], &held(&client), &Cancel::default());
    for done in again {
        let done = done.unwrap();
        assert_eq!((done.number, done.new_bytes, done.owner), (2, 0, Some(Owner::default())));
    }
    // What cannot be a part is written by itself, or fails by itself.
    let mut mixed: Vec<SmallPut> = files(190);
    mixed.push(small("tess:/nowhere/f", data(10, 1)));
    mixed.push(small("tess:/", data(10, 1)));
    let results =
        client.put_small(mixed, &[("redundancy".into(), "replica:2".into())], &held(&client), &Cancel::default());
    assert_eq!(results.iter().filter(|done| done.is_ok()).count(), 10);
    assert_eq!(results[10].as_ref().unwrap_err().code(), Code::NotFound);
    assert!(read(&client, "tess:/f199") == content(199));
    cluster.lock().check_all_stored();
}

/// P2: bytes that are not what the content's name says are not returned, although they are a part of a verified chunk.
#[test]
fn a_content_is_verified_by_its_own_name() {
    let (client, cluster) = client(Cluster::new(8, 1), Options::default());
    let files = (0..8).map(|i| small(&format!("tess:/f{i}"), data(20_000, i + 1))).collect();
    client.put_small(files, &[], &held(&client), &Cancel::default()).into_iter().for_each(|done| drop(done.unwrap()));
    cluster
        .lock()
        .db()
        .conn()
        .execute("UPDATE contents SET chunk_offset = chunk_offset + 1 WHERE chunk_offset = 20000", [])
        .unwrap();
    let error = client.get(&path("tess:/f1"), Sink::Writer(&mut Vec::new()), GetOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::File(FileError { cause: Cause::WrongContent { .. }, .. })), "{error}");
    let mut out = [0; 50];
    let part_of = |i: u64, out: &mut [u8]| {
        let ino = client.stat(&path(&format!("tess:/f{i}"))).unwrap().ino;
        let handle = client.read_inode(ino, 0, 0..u64::MAX).unwrap();
        [9_000, 100, 9_000].map(|at| handle.read_at(at, out).map_err(|error| error.cause))
    };
    for answer in part_of(1, &mut out) {
        assert!(matches!(answer, Err(Cause::WrongContent { .. })), "{answer:?}");
    }
    assert_eq!(part_of(3, &mut out), [Ok(50), Ok(50), Ok(50)]);
    assert!(out == data(20_000, 4)[9_000..9_050]);
    cluster
        .lock()
        .db()
        .conn()
        .execute("UPDATE contents SET hash = zeroblob(32) WHERE chunk_offset = 40000", [])
        .unwrap();
    let error = client.get(&path("tess:/f2"), Sink::Writer(&mut Vec::new()), GetOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::File(FileError { cause: Cause::WrongChunk { .. }, .. })), "{error}");
    assert!(read(&client, "tess:/f3") == data(20_000, 4));
}

#[test]
fn packs_are_written_anew_while_their_files_are_read() {
    let (client, cluster) = client(Cluster::new(8, 1), Options { get_timeout_ms: 500, ..Options::default() });
    let name = |i: u64| format!("tess:/f{i}");
    for from in [0, 40, 80] {
        let files = (from..from + 40).map(|i| small(&name(i), data(20_000, i + 1))).collect();
        client
            .put_small(files, &[], &held(&client), &Cancel::default())
            .into_iter()
            .for_each(|done| drop(done.unwrap()));
    }
    assert_eq!(client.compact_packs(50, |_| true, &Cancel::default()).unwrap(), Compacted::default(), "all is left");
    (0..120).filter(|i| i % 4 > 0).for_each(|i| client.unlink(&path(&name(i)), false).unwrap());
    let handle = client.read_inode(client.stat(&path(&name(4))).unwrap().ino, 0, 0..u64::MAX).unwrap();
    let mut out = vec![0; 20_000];
    assert_eq!(client.compact_packs(50, |_| false, &Cancel::default()).unwrap().packs, 0, "none of mine");
    let done = client.compact_packs(50, |_| true, &Cancel::default()).unwrap();
    assert_eq!((done.packs, done.moved_bytes, done.pack_bytes), (3, 30 * 20_000, 120 * 20_000));
    for i in (0..120).step_by(4) {
        assert!(read(&client, &name(i)) == data(20_000, i + 1), "file {i}");
    }
    assert_eq!(client.compact_packs(50, |_| true, &Cancel::default()).unwrap(), Compacted::default());
    // What the reader knows is gone; it looks where its bytes are by now.
    client.maintain(MaintenanceJob::Gc, true).unwrap();
    cluster.lock().run(60_000);
    let chunks: i64 =
        cluster.lock().db().conn().query_row("SELECT count(*) FROM chunks", [], |row| row.get(0)).unwrap();
    assert_eq!(chunks, 1, "the old packs are removed");
    assert_eq!(handle.read_at(0, &mut out).unwrap(), 20_000);
    assert!(out == data(20_000, 5));
    cluster.lock().check_all_stored();
}

/// A handle that read of a pack before it was written anew finds its bytes, whatever it reads next, and however often packs move.
#[test]
fn readers_follow_packs_that_move() {
    let (client, cluster) = client(Cluster::new(8, 1), Options { get_timeout_ms: 500, ..Options::default() });
    let name = |i: u64| format!("tess:/f{i}");
    let store = |from: u64| {
        let files = (from..from + 40).map(|i| small(&name(i), data(20_000, i + 1))).collect();
        client
            .put_small(files, &[], &held(&client), &Cancel::default())
            .into_iter()
            .for_each(|done| drop(done.unwrap()));
    };
    store(0);
    let ino = client.stat(&path(&name(4))).unwrap().ino;
    // Both ends of the content are left in the version, as extents of their own.
    let mut patch = client.open_inode(ino, true, None).unwrap();
    patch.skip_to(8_192).unwrap();
    patch.write(&[7; 1_000]).unwrap();
    patch.finish().unwrap();
    let mut expected = data(20_000, 5);
    expected[8_192..9_192].fill(7);
    let handle = client.read_inode(ino, 0, 0..u64::MAX).unwrap();
    let mut out = vec![0; 20_000];
    for round in 1..3u64 {
        let gone = (40 * round - 40..40 * round).filter(|i| *i != 4);
        gone.for_each(|i| drop(client.unlink(&path(&name(i)), false)));
        store(40 * round);
        (40 * round..40 * round + 39).for_each(|i| client.unlink(&path(&name(i)), false).unwrap());
        assert!(client.compact_packs(75, |_| true, &Cancel::default()).unwrap().packs >= 1);
        client.maintain(MaintenanceJob::Gc, true).unwrap();
        cluster.lock().run(60_000);
        for (from, to) in [(0, 100), (100, 9_000), (9_000, 20_000), (0, 20_000)] {
            assert_eq!(handle.read_at(from as u64, &mut out[from..to]).unwrap(), to - from, "round {round}");
            assert!(out[from..to] == expected[from..to], "round {round}, {from} to {to}");
        }
    }
    assert_eq!(
        cluster.lock().db().conn().query_row("SELECT count(*) FROM contents", [], |row| row.get::<_, i64>(0)),
        Ok(2)
    );
}

/// P2: they come in one read, each as it was described, or not at all.
#[test]
fn small_files_that_were_described_are_read_together() {
    let (client, cluster) = client(Cluster::new(8, 1), Options { get_timeout_ms: 500, ..Options::default() });
    let name = |i: u64| format!("f{i}");
    let full = |i: u64| path(&format!("tess:/{}", name(i)));
    let content = |i: u64| match i {
        3 => Vec::new(),
        5 => vec![0; 3_000],
        _ => data(20_000, i + 1),
    };
    let files = (0..8).map(|i| small(&full(i).to_string(), content(i))).collect();
    client.put_small(files, &[], &held(&client), &Cancel::default()).into_iter().for_each(|done| drop(done.unwrap()));
    for i in 8..12 {
        client.put(&full(i), &content(i)[..], PutOptions::default()).unwrap();
    }
    client.put(&full(12), &data(3_000_000, 13)[..], PutOptions::default()).unwrap();
    client.mkdir(&full(13), false).unwrap();
    let root = client.stat(&path("tess:/")).unwrap().ino;
    let names: Vec<Vec<u8>> = (0..15).map(|i| name(i).into_bytes()).collect();
    let opened = cluster.lock().count("OpenRead");
    let gets = cluster.lock().count("GetFragments");
    let described = client.describe_names(root, &names).unwrap();
    assert!(described[..13].iter().all(|file| file.lease_ms > 0), "each has a lease");
    let check = |i: u64, file: &WholeFile| {
        assert!(file.bytes()[..] == content(i), "file {i}");
        assert_eq!(file.opened().attr.ino, client.stat(&full(i)).unwrap().ino);
        assert_eq!(file.opened().version.size_bytes, content(i).len() as u64);
    };
    let read = client.read_described(described.clone());
    (0..12).for_each(|i| check(i, read[i as usize].as_ref().unwrap()));
    assert!(read[12..].iter().all(Option::is_none) && read.len() == 15, "no long file, directory, or absent one");
    assert_eq!(cluster.lock().count("OpenRead"), opened);
    let gets = cluster.lock().count("GetFragments") - gets;
    assert!(gets <= 8, "{gets} requests to 8 nodes for 12 files");
    let mut part = [0; 8];
    let file = read[1].as_ref().unwrap();
    assert_eq!((file.read_at(19_996, &mut part), &part[..4]), (4, &content(1)[19_996..]));
    assert_eq!((file.read_at(20_000, &mut part), file.read_at(u64::MAX, &mut part)), (0, 0));
    // The chunk of one goes. Others that come in the same read may be left out, too.
    client.unlink(&full(10), false).unwrap();
    client.maintain(MaintenanceJob::Gc, true).unwrap();
    cluster.lock().run(60_000);
    client.context.cache.clear();
    let read = client.read_described(described);
    assert!(read[10].is_none());
    (0..12).for_each(|i| read[i as usize].iter().for_each(|file| check(i, file)));
    cluster.lock().check_all_stored();
}

/// P2, P4: a small file is read without a session, and opened if its chunk is gone by then.
#[test]
fn small_files_are_described_at_once_and_read_without_a_session() {
    let (client, cluster) = client(Cluster::new(8, 1), Options { get_timeout_ms: 500, ..Options::default() });
    let name = |i: u64| path(&format!("tess:/f{i}"));
    let content = |i: u64| if i == 3 { Vec::new() } else { data(20_000, i + 1) };
    let files = (0..10).map(|i| small(&name(i).to_string(), content(i))).collect();
    client.put_small(files, &[], &held(&client), &Cancel::default()).into_iter().for_each(|done| drop(done.unwrap()));
    client.put(&name(10), &data(50_000, 11)[..], PutOptions::default()).unwrap();
    client.mkdir(&name(11), false).unwrap();
    client.put(&name(12), &data(3_000_000, 13)[..], PutOptions::default()).unwrap();
    client.put(&name(0), &data(400, 77)[..], PutOptions::default()).unwrap();
    let paths: Vec<StorePath> = (0..14).map(name).chain([path("tess:/nowhere/f"), path("tess:/")]).collect();
    let describe = || client.describe(&paths.iter().collect::<Vec<_>>(), 0).unwrap();
    let described = describe();
    let known: Vec<bool> = described.iter().map(Option::is_some).collect();
    assert_eq!(known, [[true; 11].as_slice(), &[false; 5]].concat(), "no directory, long file, or absent one");
    let get = |i: u64, described| {
        let (mut out, options) = (Vec::new(), GetOptions { described, bulk: true, ..GetOptions::default() });
        let (opened, len_bytes) = client.get(&name(i), Sink::Writer(&mut out), options)?;
        assert_eq!((opened.attr.ino, len_bytes), (client.stat(&name(i)).unwrap().ino, out.len() as u64));
        Ok::<_, Error>(out)
    };
    let opened = cluster.lock().count("OpenRead");
    for i in 1..11 {
        let expected = if i == 10 { data(50_000, 11) } else { content(i) };
        assert!(get(i, described[i as usize].clone()).unwrap() == expected, "file {i}");
    }
    assert!(get(0, described[0].clone()).unwrap() == data(400, 77), "the current version");
    assert!(client.describe(&[&name(0)], 1).unwrap()[0].is_none(), "the first version is gone");
    assert_eq!(cluster.lock().count("OpenRead"), opened, "nothing was opened");
    assert_eq!(cluster.lock().status().sessions, 0, "and nothing is left open");
    // All packs go, and with them what is known of files.
    let described = describe();
    let rest = (0..11).map(|i| small(&name(i).to_string(), data(500, 100 + i))).collect();
    client.put_small(rest, &[], &held(&client), &Cancel::default()).into_iter().for_each(|done| drop(done.unwrap()));
    client.unlink(&name(9), false).unwrap();
    client.context.cache.clear();
    client.maintain(MaintenanceJob::Gc, true).unwrap();
    cluster.lock().run(60_000);
    assert!(get(3, described[3].clone()).unwrap().is_empty(), "what it was needs no chunk");
    for i in [1, 2, 4, 5, 6, 7, 8, 10] {
        assert!(get(i, described[i as usize].clone()).unwrap() == data(500, 100 + i), "file {i} as it is now");
    }
    assert!(
        get(0, described[0].clone()).unwrap() == data(400, 77),
        "the bytes of a tiny file come with its description"
    );
    assert_eq!(get(9, described[9].clone()).unwrap_err().code(), Code::NotFound);
    assert_eq!(client.read_report().bad, 0, "what was removed is not bad");
    cluster.lock().check_all_stored();
}

/// P2, P4: small files that were written by themselves move into packs. What they are does not change, nor what who reads them meanwhile gets.
#[test]
fn cold_files_move_into_packs_while_they_are_read() {
    let (client, cluster) = client(Cluster::new(8, 1), Options { get_timeout_ms: 500, ..Options::default() });
    let name = |i: u64| format!("tess:/f{i}");
    let content = |i: u64| match i {
        0 => data(128 << 10, 1),
        1 => [data(5_000, 2), vec![0; 90_000], data(20_000, 3)].concat(),
        2 | 3 => data(7_000, 4),
        _ => data(1 + 300 * i as usize, i),
    };
    let put = |i: u64, content: &[u8]| client.put(&path(&name(i)), content, PutOptions::default()).unwrap();
    (0..60).for_each(|i| drop(put(i, &content(i))));
    put(60, &data(200_000, 60));
    put(61, &vec![0; 50_000]);
    let stats = || (0..62).map(|i| client.stat(&path(&name(i))).unwrap()).collect::<Vec<_>>();
    let before = stats();
    let handle = client.read_inode(before[4].ino, 0, 0..u64::MAX).unwrap();
    let described = client.describe(&[&path(&name(5))], 0).unwrap().remove(0);
    let move_all = |unwritten| client.move_into_packs(unwritten, Share::ALL, &Cancel::default()).unwrap();
    assert_eq!(move_all(Duration::from_secs(60)), MovedFiles::default(), "all were just written");
    let none = client.move_into_packs(Duration::ZERO, Share { own: 1, all: 2 }, &Cancel::default()).unwrap();
    assert_eq!(none, MovedFiles::default(), "none of mine");
    let stored_bytes = || cluster.lock().status().stored_bytes;
    let copies_bytes = stored_bytes();
    let moved = move_all(Duration::ZERO);
    let bytes: u64 =
        (0..60).filter(|i| *i != 3).map(|i| content(i).iter().filter(|byte| **byte != 0).count() as u64).sum();
    assert_eq!((moved.files, moved.contents), (50, 10), "those of at most 4 KiB were in the metadata");
    assert!((bytes..bytes + 100_000).contains(&moved.pack_bytes), "{moved:?}, {bytes} bytes without holes");
    assert_eq!(move_all(Duration::ZERO), MovedFiles::default());
    assert_eq!(stats(), before);
    client.context.cache.clear();
    client.maintain(MaintenanceJob::Gc, true).unwrap();
    cluster.lock().run(60_000);
    for i in 0..60 {
        assert!(read(&client, &name(i)) == content(i), "file {i}");
    }
    let mut out = vec![0; content(4).len()];
    assert_eq!(handle.read_at(0, &mut out).unwrap(), out.len());
    assert!(out == content(4));
    drop(handle);
    let (mut out, options) = (Vec::new(), GetOptions { described, bulk: true, ..GetOptions::default() });
    client.get(&path(&name(5)), Sink::Writer(&mut out), options).unwrap();
    assert!(out == content(5), "its chunk is gone, so it was opened");
    cluster.lock().run(60_000);
    client.maintain(MaintenanceJob::Gc, true).unwrap();
    cluster.lock().run(60_000);
    // Copies on three disks became six fragments of packs, each a quarter as long.
    assert!(stored_bytes() < copies_bytes * 6 / 10, "{} of {copies_bytes} bytes", stored_bytes());
    // Part of a file is written: its other bytes stay in the pack.
    let mut patch = client.open_inode(before[0].ino, true, None).unwrap();
    patch.skip_to(8_192).unwrap();
    patch.write(&[7; 1_000]).unwrap();
    patch.finish().unwrap();
    let mut expected = content(0);
    expected[8_192..9_192].fill(7);
    assert_eq!(move_all(Duration::ZERO), MovedFiles::default(), "one file is too few");
    assert!(read(&client, &name(0)) == expected);
    cluster.lock().check_all_stored();
}

/// A log that is closed after each line has a chunk for each: a pack of such files has its most contents before its most bytes.
#[test]
fn files_of_many_pieces_move_into_packs() {
    let (client, cluster) = client(Cluster::new(8, 1), Options::default());
    let line = |i: u64, k: u64| data(100, 1_000 + 10 * i + k);
    for i in 0..180 {
        let name = path(&format!("tess:/log{i}"));
        client.put(&name, &line(i, 0)[..], PutOptions::default()).unwrap();
        let ino = client.stat(&name).unwrap().ino;
        for k in 1..6 {
            let mut patch = client.open_inode(ino, true, None).unwrap();
            patch.skip_to(100 * k).unwrap();
            patch.write(&line(i, k)).unwrap();
            patch.finish().unwrap();
        }
    }
    let moved = client.move_into_packs(Duration::ZERO, Share::ALL, &Cancel::default()).unwrap();
    // The first line of each was in the metadata.
    assert_eq!((moved.files, moved.contents, moved.pack_bytes, moved.failed), (180, 180, 180 * 600, None));
    for i in 0..180 {
        let all: Vec<u8> = (0..6).flat_map(|k| line(i, k)).collect();
        assert!(read(&client, &format!("tess:/log{i}")) == all, "file {i}");
    }
    // One with a hole beside its chunk, and one of which a part was written anew, are not read again and again.
    client.put(&path("tess:/hole"), &[data(300, 1), vec![0; 90_000]].concat()[..], PutOptions::default()).unwrap();
    let mut patch = client.open_inode(client.stat(&path("tess:/log0")).unwrap().ino, true, None).unwrap();
    patch.skip_to(50).unwrap();
    patch.write(&[7; 20]).unwrap();
    patch.finish().unwrap();
    client.move_into_packs(Duration::ZERO, Share::ALL, &Cancel::default()).unwrap();
    cluster.lock().check_all_stored();
}

/// P4, P5: tiny files leave the metadata, whatever became of them since.
#[test]
fn tiny_files_leave_the_metadata() {
    let (client, cluster) = client(Cluster::new(8, 1), Options::default());
    let name = |i: u64| path(&format!("tess:/t{i}"));
    let mut expected: Vec<Vec<u8>> = (0..700).map(|i| data(1 + 5 * i as usize, 1 + i)).collect();
    for (i, content) in expected.iter().enumerate() {
        client.put(&name(i as u64), &content[..], PutOptions::default()).unwrap();
    }
    let inlined_bytes = || cluster.lock().status().inlined_bytes;
    assert_eq!(inlined_bytes(), expected.iter().map(|content| content.len() as u64).sum::<u64>());
    let handle = client.read_inode(client.stat(&name(5)).unwrap().ino, 0, 0..u64::MAX).unwrap();
    // One is written in its middle, one grows until it is long.
    let mut patch = client.open_inode(client.stat(&name(600)).unwrap().ino, true, None).unwrap();
    patch.skip_to(1_000).unwrap();
    patch.write(&[7; 100]).unwrap();
    patch.finish().unwrap();
    expected[600][1_000..1_100].fill(7);
    for k in 0..70 {
        let line = data(2_000, 9_000 + k);
        let mut more = client.open_inode(client.stat(&name(601)).unwrap().ino, true, None).unwrap();
        more.skip_to(expected[601].len() as u64).unwrap();
        more.write(&line).unwrap();
        more.finish().unwrap();
        expected[601].extend(line);
    }
    let move_all = |unwritten| client.move_into_packs(unwritten, Share::ALL, &Cancel::default()).unwrap();
    assert_eq!(move_all(Duration::from_secs(60)), MovedFiles::default(), "all were just written");
    let moved = move_all(Duration::ZERO);
    assert_eq!((moved.files, moved.contents), (0, 700), "one is long, and one file with chunks is too few");
    assert_eq!(inlined_bytes(), 0);
    cluster.lock().check_all_stored();
    for (i, content) in expected.iter().enumerate() {
        assert!(read(&client, &format!("tess:/t{i}")) == *content, "file {i}");
    }
    let mut out = vec![0; expected[5].len()];
    assert_eq!(handle.read_at(0, &mut out).unwrap(), out.len());
    assert!(out == expected[5]);
}

/// P5: a file that goes while its content moves keeps none of the others in the metadata.
#[test]
fn tiny_files_leave_the_metadata_while_some_are_removed() {
    let (client, cluster) = client(Cluster::new(8, 1), Options::default());
    for i in 0..500 {
        client.put(&path(&format!("tess:/t{i}")), &data(100, 1 + i)[..], PutOptions::default()).unwrap();
    }
    let move_all = || client.move_into_packs(Duration::ZERO, Share::ALL, &Cancel::default()).unwrap();
    cluster.lock().before(tessera_wire::Kind::Commit, |cluster| cluster.unlink("t7"));
    let moved = move_all();
    assert_eq!((moved.contents, moved.failed), (499, None));
    assert_eq!(cluster.lock().status().inlined_bytes, 0);
    for i in (0..500).filter(|i| *i != 7) {
        assert!(read(&client, &format!("tess:/t{i}")) == data(100, 1 + i), "file {i}");
    }
    cluster.lock().check_all_stored();
}
