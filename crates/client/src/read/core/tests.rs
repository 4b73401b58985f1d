//! The read core against a cluster in memory: every pattern of loss, corruption and lateness, and never a wrong byte.

use super::*;
use crate::read::cache::ChunkCache;
use crate::test_drive::{Drive, data, read_all, write_all};
use proptest::prelude::*;
use tessera_testkit::{Cluster, Config, config};
use tessera_wire::Kind;
use tessera_wire::meta::{CommitMode, ReportBad};

/// A cluster with `bytes` in file `f`, in chunks of `chunk` bytes.
fn stored(hosts: usize, spec: &str, bytes: &[u8], chunk: usize) -> Drive {
    stored_in(Cluster::new(hosts, 1), spec, bytes, chunk)
}

fn stored_in(cluster: Cluster, spec: &str, bytes: &[u8], chunk: usize) -> Drive {
    let mut drive = Drive::new(cluster.with("redundancy", spec));
    let mut core = drive.writer("f", CommitMode::Replace, Some(bytes.len() as u64));
    drive.write(&mut core, write_all(bytes, chunk)).0.unwrap();
    drive.trace.clear();
    drive
}

/// Faults of a fragment.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Harm {
    None,
    Missing,
    Rotten,
    /// Wrong bytes with a matching checksum.
    Lying,
    Late,
    Down,
}

fn harm(drive: &mut Drive, number: u32, harm: Harm) {
    let cluster = &mut drive.cluster;
    for chunk in cluster.chunks() {
        let (id, member) = (chunk.chunk_id, cluster.members_of(chunk.pg_id)[number as usize]);
        let held = &mut cluster.disks.get_mut(&member.disk_id).unwrap().held;
        match harm {
            Harm::None => {}
            Harm::Missing => drop(held.remove(&(id, number))),
            Harm::Rotten => held.get_mut(&(id, number)).unwrap().rot(id as usize * 7),
            Harm::Lying => {
                let fragment = held.get_mut(&(id, number)).unwrap();
                fragment.rot(id as usize * 13);
                fragment.crc32c = tessera_accel::checksum::crc32c(&fragment.bytes);
            }
            Harm::Late => cluster.node_of(member.disk_id).delay_ns = 3_000_000_000,
            Harm::Down => cluster.node_of(member.disk_id).down = true,
        }
    }
}

const HARMS: [Harm; 6] = [Harm::None, Harm::Missing, Harm::Rotten, Harm::Lying, Harm::Late, Harm::Down];

#[test]
fn golden_plain_read() {
    let bytes = data(100_000, 1);
    let mut drive = stored(6, "ec:4+2", &bytes, 100_000);
    assert_eq!(read_all(&mut drive, "f").unwrap(), bytes);
    let gets = drive.trace.iter().filter(|l| l.contains("GetFragments")).count();
    assert_eq!((drive.trace[0].as_str(), gets, drive.trace.len()), ("manager OpenRead", 4, 5), "{:#?}", drive.trace);
}

/// One copy is one request, near or far.
#[test]
fn golden_read_of_a_copy() {
    let bytes = data(100_000, 1);
    let mut drive = stored(6, "copy+ec:4+2", &bytes, 100_000);
    let copy = drive.cluster.members_of(drive.cluster.chunks()[0].pg_id)[0];
    let home = drive.cluster.node_of(copy.disk_id).node_id;
    assert_eq!(read_all(&mut drive, "f").unwrap(), bytes);
    let get = format!("n{home} GetFragments");
    assert!(drive.trace.len() == 2 && drive.trace[1].starts_with(&get), "{get}: {:#?}", drive.trace);
}

/// P1: every pattern of lost fragments, for small and large reads: enough fragments are read, too few are an error.
#[test]
fn every_pattern_of_losses() {
    for (spec, n, k) in [("copy+ec:4+2", 6u32, 4u32), ("copy+ec:2+1", 3, 2), ("raid6:4+2", 6, 4), ("raid6:3+2", 5, 3)] {
        let bytes = data(70_001, 2);
        for pattern in 0u32..1 << n {
            let lost = |i: &u32| pattern >> i & 1 == 1;
            let enough = spec.starts_with("copy") && !lost(&0) || n - pattern.count_ones() >= k;
            let mut drive = stored(6, spec, &bytes, 70_001);
            (0..n).filter(lost).for_each(|i| harm(&mut drive, i, Harm::Missing));
            match (read_all(&mut drive, "f").map_err(|e| e.cause), enough) {
                (Ok(read), true) => assert!(read == bytes, "{spec} {pattern:b}"),
                (Err(Cause::TooFewFragments { needed, got, .. }), false) => {
                    assert_eq!((needed, got), (k, n - pattern.count_ones()), "{spec} {pattern:b}");
                }
                (other, _) => panic!("{spec} {pattern:b}: {:?}", other.map(|read| read.len())),
            }
            for (offset, len) in [(0u64, 100u64), (17_000, 20_000), (69_000, 1_001)] {
                match (drive.read("f", offset, len, false).map_err(|e| e.cause), enough) {
                    // A slice that is there is read, whatever happened to the rest.
                    (Ok(read), _) => assert!(read == bytes[offset as usize..][..len as usize], "{spec} {pattern:b}"),
                    (Err(Cause::TooFewFragments { .. }), false) => {}
                    (other, _) => panic!("{spec} {pattern:b}: {:?}", other.map(|read| read.len())),
                }
            }
        }
    }
}

/// P1: with any m fragments harmed, in any way, all bytes are read; bad fragments are reported.
#[test]
fn every_pattern_of_two_harms_of_a_4_2_code_is_survived() {
    ["ec:4+2", "copy+ec:4+2", "raid6:4+2"].into_iter().for_each(every_pattern_of_two_harms);
}

fn every_pattern_of_two_harms(spec: &str) {
    let bytes = data(130_001, 2);
    for (a, b) in (0..6).flat_map(|a| (a + 1..6).map(move |b| (a, b))) {
        for first in HARMS {
            // The second harm depends on the first, so that all pairs occur over the patterns.
            let second = HARMS[(first as usize + a as usize + b as usize) % HARMS.len()];
            let mut drive = stored(6, spec, &bytes, 130_001);
            harm(&mut drive, a, first);
            harm(&mut drive, b, second);
            let read = read_all(&mut drive, "f");
            assert_eq!(read.as_ref(), Ok(&bytes), "{spec} {a} {first:?} {b} {second:?}\n{:#?}", drive.trace);
            let reports = drive.cluster.asked::<ReportBad>();
            for (number, harm) in [(a, first), (b, second)] {
                let reported = reports.iter().flat_map(|r| &r.fragments).any(|f| f.fragment == number);
                // Slices beside a good copy are not read.
                let looked_at = if spec.starts_with("copy") { number == 0 } else { number < 4 };
                let visible = matches!(harm, Harm::Missing | Harm::Rotten | Harm::Lying) && looked_at;
                assert!(
                    !visible || reported,
                    "{spec} {a} {first:?} {b} {second:?}: fragment {number} was not reported"
                );
            }
        }
    }
}

#[test]
fn every_pattern_of_harmed_copies_is_survived() {
    let bytes = data(30_000, 3);
    for pattern in 0..HARMS.len() * HARMS.len() * 3 {
        let (first, second, sound) = (HARMS[pattern % 6], HARMS[pattern / 6 % 6], (pattern / 36) as u32);
        let mut drive = stored(5, "replica:3", &bytes, 30_000);
        let others: Vec<u32> = (0..3).filter(|n| *n != sound).collect();
        harm(&mut drive, others[0], first);
        harm(&mut drive, others[1], second);
        assert_eq!(read_all(&mut drive, "f").unwrap(), bytes, "{first:?} {second:?} {sound}");
    }
}

/// P2: more harm than the redundancy covers is a typed error that names the file, the chunk and what was missing.
#[test]
fn more_harm_than_redundancy_is_an_error_that_says_what() {
    let bytes = data(70_001, 2);
    let harms = [[Harm::Missing; 3], [Harm::Rotten; 3], [Harm::Lying; 3], [Harm::Down; 3]];
    let cases = harms.iter().flat_map(|harms| ["ec:4+2", "copy+ec:4+2", "raid6:4+2"].map(|spec| (spec, *harms)));
    for (spec, harms) in cases {
        let mut drive = stored(6, spec, &bytes, 70_001);
        (0..3).for_each(|i| harm(&mut drive, i * 2, harms[i as usize]));
        let error = read_all(&mut drive, "f").unwrap_err();
        let chunk = drive.cluster.chunks()[0].chunk_id;
        assert_eq!(error.file, "tess:/f");
        match (&error.cause, harms[0]) {
            (Cause::TooFewFragments { chunk_id, needed: 4, got: 3, missing }, Harm::Missing | Harm::Down) => {
                assert!(*chunk_id == chunk && missing.contains("fragment 0"), "{error}");
            }
            (Cause::Corrupt { chunk_id, .. }, Harm::Rotten | Harm::Lying) => {
                assert_eq!(*chunk_id, chunk, "{error}");
            }
            _ => panic!("{spec} {harms:?}: {error}"),
        }
    }
}

/// P12: the read waits for nodes that come back.
#[test]
fn nodes_that_come_back_in_time_are_read() {
    let bytes = data(70_001, 2);
    let mut drive = stored(6, "ec:4+2", &bytes, 70_001);
    (0..3).for_each(|i| harm(&mut drive, i, Harm::Down));
    (0..3).for_each(|_| drive.cluster.before(Kind::GetMap, |_| {}));
    drive.cluster.before(Kind::GetMap, |cluster| cluster.nodes.iter_mut().for_each(|n| n.down = false));
    assert_eq!(read_all(&mut drive, "f").unwrap(), bytes);
}

/// A fragment that moved is found where the newer map says; one being moved, on either disk.
#[test]
fn members_that_moved_are_followed() {
    let bytes = data(70_001, 2);
    let mut drive = stored(9, "ec:4+2", &bytes, 70_001);
    let chunk = drive.cluster.chunks()[0].clone();
    for number in 0..3u32 {
        let stored = drive.cluster.fragment(chunk.chunk_id, number).unwrap().clone();
        harm(&mut drive, number, Harm::Missing);
        drive.cluster.fail_disk(drive.cluster.members_of(chunk.pg_id)[number as usize].disk_id);
        let to = drive.cluster.members_of(chunk.pg_id)[number as usize].incoming;
        drive.cluster.disks.get_mut(&to).unwrap().held.insert((chunk.chunk_id, number), stored);
    }
    assert_eq!(read_all(&mut drive, "f").unwrap(), bytes);
}

/// Late fragments are replaced after the hedge, not after their time-out; the node is avoided for a while.
#[test]
fn late_fragments_are_hedged() {
    let bytes = data(300_000, 4);
    let mut drive = stored(6, "ec:4+2", &bytes, 100_000);
    drive.cluster.node(1).delay_ns = 3_000_000_000;
    let before = drive.now;
    assert_eq!(read_all(&mut drive, "f").unwrap(), bytes);
    let took_ms = (drive.now - before) / crate::config::MS;
    assert!((50..200).contains(&took_ms), "{took_ms} ms");
    let before = drive.now;
    assert_eq!(read_all(&mut drive, "f").unwrap(), bytes);
    assert!((drive.now - before) / crate::config::MS < 50, "the slow node is not asked again");
}

#[test]
fn long_files_are_read_in_pages_of_extents_within_the_window() {
    let bytes = data(500_000, 5);
    let pages_of_seven = Config { max_list_extents: 7, ..config() };
    let mut drive = stored_in(Cluster::with_config(6, 1, pages_of_seven), "ec:4+2", &bytes, 5_000);
    drive.options = Arc::new(Options { read_window_bytes: 40_000, ..Options::default() });
    assert_eq!(read_all(&mut drive, "f").unwrap(), bytes);
    assert!(drive.cluster.count("ListExtents") >= 10, "{:?}", drive.cluster.calls);
    for (offset, len) in [(0, 1), (4_999, 2), (123_456, 54_321), (499_999, 10), (500_000, 10), (600_000, 1)] {
        let from = (offset as usize).min(bytes.len());
        let to = (offset as usize + len as usize).min(bytes.len());
        assert_eq!(drive.read("f", offset, len, false).unwrap(), bytes[from..to], "{offset} {len}");
    }
}

/// The first reads at random places teach the reader all extents: it does not ask the manager at each place.
#[test]
fn reads_at_random_places_ask_for_few_pages_of_extents() {
    let bytes = data(40 << 20, 12);
    let mut drive = stored(6, "ec:4+2", &bytes, 64 << 10);
    let mut core = drive.reader("f", ChunkCache::shared(8 << 20), 0, 0);
    for id in 1..=1_000u64 {
        let at = (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (bytes.len() as u64 - 4_096)) as usize;
        let read = drive.read_with(&mut core, id, at as u64, 4_096, false).unwrap();
        assert!(read == bytes[at..at + 4_096], "{at}");
    }
    let asked = drive.cluster.count("ListExtents");
    assert!(asked <= 20, "{asked} requests for the extents of 640 chunks");
}

/// P2: small reads move few bytes and are verified; with damage they are still right.
#[test]
fn small_reads_fetch_groups_and_survive_damage() {
    let bytes = data(1_000_000, 6);
    for spec in ["ec:4+2", "replica:3", "copy+ec:4+2", "raid6:4+2"] {
        for harmed in HARMS {
            for number in 0..3 {
                let mut drive = stored(6, spec, &bytes, 1_000_000);
                harm(&mut drive, number, harmed);
                for (offset, len) in
                    [(0u64, 100u64), (249_900, 300), (16_384, 16_384), (999_999, 1), (500_000, 100_000)]
                {
                    let read = drive.read("f", offset, len, false).unwrap();
                    let wanted = &bytes[offset as usize..(offset + len) as usize];
                    assert!(read == wanted, "{spec} {harmed:?} {number} {offset}");
                }
            }
        }
    }
}

#[test]
fn small_reads_move_little() {
    let bytes = data(1_000_000, 6);
    let mut drive = stored(6, "ec:4+2", &bytes, 1_000_000);
    let cache = ChunkCache::shared(8 << 20);
    let mut core = drive.reader("f", cache, 0, 0);
    assert_eq!(drive.read_with(&mut core, 1, 100, 50, false).unwrap(), bytes[100..150]);
    let gets = drive.cluster.count("GetFragments");
    assert_eq!(gets, 1, "one group lies in one fragment: {:#?}", drive.trace);
    assert_eq!(drive.read_with(&mut core, 2, 900_000, 50, false).unwrap(), bytes[900_000..900_050]);
    assert_eq!(drive.cluster.count("GetFragments"), 2);
    // Sequential reads fetch whole chunks, and then find them in the cache.
    for i in 0..20 {
        let at = 300_000 + i * 1000;
        assert_eq!(
            drive.read_with(&mut core, 10 + i, at, 1000, false).unwrap(),
            bytes[at as usize..at as usize + 1000]
        );
    }
    assert!(drive.cluster.count("GetFragments") <= 2 + 1 + 4, "{:#?}", drive.trace);
}

/// `cache=SIZE` holds while a file is read (plus what is read ahead), and exactly once it is closed.
#[test]
fn a_file_keeps_no_more_in_the_cache_than_its_policy_allows() {
    let bytes = data(40 << 20, 9);
    for (hint, closed_bytes) in [("auto", 40 << 20), ("8M", 8 << 20), ("none", 0)] {
        let mut drive = Drive::new(Cluster::new(6, 1).with("redundancy", "ec:4+2").with("cache", hint));
        let mut core = drive.writer("f", CommitMode::Replace, Some(bytes.len() as u64));
        drive.write(&mut core, write_all(&bytes, 1 << 20)).0.unwrap();
        let cache = ChunkCache::shared(1 << 30);
        let mut core = drive.reader("f", cache.clone(), 0, 0);
        let mut most = 0;
        for i in 0..40usize {
            let at = i << 20;
            let read = drive.read_with(&mut core, i as u64 + 1, at as u64, 1 << 20, false).unwrap();
            assert!(read == bytes[at..at + (1 << 20)]);
            most = most.max(cache.chunk_bytes());
        }
        let room = if hint == "auto" { 40 << 20 } else { closed_bytes + (16 << 20) };
        assert!(most <= room, "{hint}: {most}");
        core.handle(drive.now, ReadEvent::Cancel);
        assert_eq!(cache.chunk_bytes(), closed_bytes, "{hint}");
    }
}

/// A sequential reader of a region of a scattered file fetches that region only: another task reads the next on another
/// host.
#[test]
fn nobody_reads_ahead_into_the_next_region() {
    let bytes = data(16 << 20, 10);
    for placement in ["scatter:4M", "spread"] {
        let mut drive = Drive::new(Cluster::new(4, 1).with("redundancy", "none").with("placement", placement));
        let mut core = drive.writer("f", CommitMode::Replace, Some(bytes.len() as u64));
        drive.write(&mut core, write_all(&bytes, 1 << 20)).0.unwrap();
        let cache = ChunkCache::shared(1 << 30);
        let mut core = drive.reader("f", cache.clone(), 0, bytes.len() as u64);
        for i in 0..4u64 {
            let at = i << 20;
            let read = drive.read_with(&mut core, i + 1, at, 1 << 20, false).unwrap();
            assert!(read == bytes[at as usize..][..1 << 20]);
        }
        // Bytes read, and chunks in flight.
        let (bytes, coming) = (cache.chunk_bytes(), core.fetches.len());
        match placement {
            "spread" => assert!(bytes > 4 << 20 || coming > 0, "nothing was read ahead"),
            _ => assert_eq!((bytes, coming), (4 << 20, 0), "{placement}"),
        }
    }
}

/// Two files of one chunk each, of the same length, in this order.
fn two_files() -> (Drive, Vec<u8>) {
    let bytes = data(200_000, 20);
    let mut drive = stored(6, "ec:4+2", &bytes, 200_000);
    let mut core = drive.writer("g", CommitMode::Replace, Some(200_000));
    drive.write(&mut core, write_all(&data(200_000, 21), 200_000)).0.unwrap();
    (drive, bytes)
}

/// P2: whichever bit of a file's extents rots, readers get the file's bytes or an error, never another file's bytes.
#[test]
fn rotten_extents_give_no_other_bytes() {
    let (mut drive, bytes) = two_files();
    let (ino, good) = drive.cluster.pages()[0].clone();
    let mut wrong_chunks = 0;
    for bit in 0..good.len() * 8 {
        let mut rotten = good.clone();
        rotten[bit / 8] ^= 1 << (bit % 8);
        drive.cluster.damage_pages(ino, &rotten);
        for (offset, len, stream) in [(0, 200_000, true), (70_000, 100, false)] {
            match drive.read("f", offset, len, stream) {
                Ok(read) => assert!(read == bytes[offset as usize..][..len as usize], "bit {bit}"),
                Err(error) => wrong_chunks += u32::from(matches!(error.cause, Cause::WrongChunk { .. })),
            }
        }
    }
    assert!(wrong_chunks > 0, "no bit made the extent name another chunk");
}

/// P2: the row of a chunk that has another chunk's name, too.
#[test]
fn a_chunk_under_another_name_is_an_error_that_says_so() {
    let (mut drive, _) = two_files();
    let [first, second] = &drive.cluster.chunks()[..] else { panic!("two chunks") };
    drive.cluster.damage_name(first.chunk_id, &second.hash);
    let error = drive.read("f", 0, 1, false).unwrap_err();
    let expected = Cause::WrongChunk {
        offset: 0,
        chunk_id: first.chunk_id,
        written: tessera_wire::Extent::prefix_of(&first.hash),
        stored: tessera_wire::Extent::prefix_of(&second.hash),
    };
    assert_eq!((error.cause.clone(), error.code()), (expected, Code::Corrupt));
    assert!(error.to_string().contains("--join"), "{error}");
}

#[test]
fn versions_stay_readable_after_newer_ones() {
    let (old, new) = (data(20_000, 7), data(25_000, 8));
    let mut drive = stored_in(Cluster::new(6, 1).with("lifetime", "keep"), "ec:4+2", &old, 10_000);
    let mut reader = drive.reader("f", ChunkCache::shared(0), 0, 0);
    assert_eq!(drive.read_with(&mut reader, 1, 0, 10_000, true).unwrap(), old[..10_000]);
    let mut core = drive.writer("f", CommitMode::Replace, Some(25_000));
    drive.write(&mut core, write_all(&new, 10_000)).0.unwrap();
    assert_eq!(read_all(&mut drive, "f").unwrap(), new);
    // The open reader keeps reading the version it opened, even after its session is reopened.
    drive.cluster.run(31_000);
    assert_eq!(drive.cluster.status().sessions, 0);
    drive.now += 60_000 * crate::config::MS;
    reader.handle(drive.now, ReadEvent::Tick);
    assert_eq!(drive.read_with(&mut reader, 2, 5_000, 15_000, true).unwrap(), old[5_000..]);
    assert_eq!(drive.cluster.count("OpenRead"), 3);
}

#[test]
fn opening_what_is_not_there_fails() {
    let mut drive = stored(6, "ec:4+2", b"x", 10);
    let error = drive.read("nothing", 0, 1, true).unwrap_err();
    assert!(matches!(&error.cause, Cause::Refused(refusal) if refusal.code() == Code::NotFound), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// P2: whatever happens to the fragments, a read gives the right bytes or an error; with at most m harmed
    /// fragments (P1) it gives the bytes.
    #[test]
    fn reads_are_right_or_fail(
        harms in proptest::collection::vec((0u32..6, 0usize..6), 0..5),
        code in 0usize..5,
        len in 1usize..150_000,
        chunk in 20_000usize..120_000,
        from in 0usize..150_000,
        part in 0usize..150_000,
        stream: bool,
    ) {
        let (spec, fragments, m) =
            [("ec:4+2", 6, 2), ("replica:3", 3, 2), ("ec:2+1", 3, 1), ("copy+ec:4+2", 6, 2), ("raid6:3+2", 5, 2)][code];
        let bytes = data(len, len as u64);
        let mut drive = stored(6, spec, &bytes, chunk);
        let mut harmed = std::collections::BTreeSet::new();
        for (number, kind) in harms {
            let (number, kind) = (number % fragments, HARMS[kind]);
            if kind != Harm::None && harmed.insert(number) {
                // Down and Late hit whole nodes, which also hold fragments with other numbers of other chunks.
                let kind = if matches!(kind, Harm::Down | Harm::Late) && len > chunk { Harm::Missing } else { kind };
                harm(&mut drive, number, kind);
            }
        }
        let (from, to) = (from.min(len), from.saturating_add(part).min(len));
        match drive.read("f", from as u64, part as u64, stream) {
            Ok(read) => prop_assert!(read == bytes[from..to.max(from)], "wrong bytes"),
            Err(error) => prop_assert!(harmed.len() > m, "{harmed:?} {error}"),
        }
    }
}
