//! `tessera flash stat` and `cut`: figures and power cuts of an emulated SSD while it is served.

mod common;
mod nbd;

use common::{assert_refused, eventually, tessera};
use nbd::{Client, Server};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tessera_disk::SplitMix64;

const IO: u32 = 5;

#[test]
fn a_power_cut_drops_what_was_not_flushed_and_every_request_fails_until_power_returns() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--ftl", "dftl", "--write-buffer", "256K"]);
    let (mut client, mut silent) = (Client::connect(&server), Client::connect(&server));
    assert_eq!((client.write(0, &[1; 8192]), client.flush()), (0, 0));
    assert_eq!((client.write(4000, &[2; 200]), client.read(4000, 200)), (0, vec![2; 200]));
    let cut = server.cut(&["--json"]).json();
    assert_eq!((&cut["power"], cut["lost_pages"].as_u64()), (&"off".into(), Some(2)));
    assert_eq!((client.write(0, &[3; 10]), client.try_read(0, 1), client.flush()), (IO, Err(IO), IO));
    assert_eq!(Client::connect(&server).try_read(0, 1), Err(IO), "a new connection has no power either");
    let stat = server.stat();
    assert_eq!((&stat["power"], stat["power_cuts"].as_u64()), (&"off".into(), Some(1)));
    assert!(server.cut(&["--restore"]).text().contains("power is on"));
    assert_eq!(client.read(0, 8192), [1; 8192]);
    // What it flushes now cannot cover what was lost: it has to hear of the cut.
    assert_eq!((silent.flush(), silent.flush()), (IO, 0));
    let stat = server.stat();
    assert_eq!((&stat["power"], stat["recovery_reads"].as_u64() > Some(0)), (&"on".into(), true));
}

#[test]
fn a_flush_fails_after_a_cut_that_lost_something_whoever_wrote_it_and_whatever_failed_before() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--write-buffer", "256K"]);
    let (mut writer, mut other) = (Client::connect(&server), Client::connect(&server));
    assert_eq!((writer.write(0, &[1; 4096]), writer.flush()), (0, 0));
    server.cut(&["--for", "0"]);
    for client in [&mut writer, &mut other] {
        assert_eq!((client.try_read(0, 1), client.flush()), (Err(IO), 0), "all was flushed, so nothing is lost");
    }
    assert_eq!(writer.write(0, &[2; 4096]), 0);
    server.cut(&["--for", "0"]);
    for client in [&mut writer, &mut other] {
        // A kernel tries a read again by itself, and nobody hears that it failed.
        assert_eq!((client.try_read(0, 1), client.read(0, 1)), (Err(IO), vec![1]));
        assert_eq!((client.flush(), client.flush()), (IO, 0), "it would cover what was lost");
    }
    let mut new = Client::connect(&server);
    assert_eq!((new.read(0, 1), new.flush()), (vec![1], 0));
}

#[test]
fn prometheus_shows_the_figures_of_json_and_what_recovery_took() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--ftl", "dftl"]);
    let mut client = Client::connect(&server);
    assert_eq!(client.write(0, &[1; 64 << 10]), 0);
    let sample = |name: &str| {
        let text = tessera(&["flash", "stat", &server.control(), "--prometheus"]).text();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("no {name}: {text}"))
    };
    let recovered = || {
        [
            sample("tessera_flash_page_reads_total{cause=\"recovery\"}"),
            sample("tessera_flash_page_programs_total{cause=\"recovery\"}"),
        ]
    };
    assert_eq!((recovered(), sample("tessera_flash_power_cuts_total")), ([0, 0], 0));
    for cuts in 1..3 {
        server.cut(&["--for", "0"]);
        // Power returns with the request that comes next, and each connection hears of the cut once.
        assert_eq!((client.try_read(0, 1), client.read(0, 1)), (Err(IO), vec![1]));
        let stat = server.stat();
        let [reads, programs] = ["recovery_reads", "recovery_programs"].map(|key| stat[key].as_u64().unwrap());
        assert_eq!((recovered(), sample("tessera_flash_power_cuts_total")), ([reads, programs], cuts));
        // The out-of-band areas of the 16 pages and of the map that the recovery before wrote; and the page of the map that has them.
        assert_eq!((reads, programs), (16 * cuts + (cuts - 1) * cuts / 2, cuts));
    }
}

#[test]
fn power_returns_by_itself_when_it_is_due() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = Client::connect(&server);
    assert_eq!(client.write(0, b"kept"), 0);
    assert!(server.cut(&["--for", "1"]).text().contains("off for 1 ms, 0 pages"));
    eventually("power is on", || server.stat()["power"] == "on");
    assert_eq!((client.try_read(0, 4), client.read(0, 4)), (Err(IO), b"kept".to_vec()));
}

#[test]
fn a_reply_that_waits_fails_when_the_power_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--timing", "read=1ms,program=9000ms"]);
    let mut client = Client::connect(&server);
    client.send(7, 1, 0, 4096, &[1; 4096]);
    eventually("the write arrived", || server.stat()["requests"] == 1);
    server.cut(&["--for", "0"]);
    assert_eq!(client.reply(), (IO, 7));
}

#[test]
fn cuts_at_random_leave_what_was_flushed_and_each_sector_as_it_was_or_as_it_was_to_be() {
    const SECTORS: u64 = 96;
    let dir = tempfile::tempdir().unwrap();
    let cuts = ["--write-buffer", "64K", "--cut-after", "60", "--cut-seed", "5", "--cut-for", "0"];
    let server = Server::start(dir.path(), &[&["--ftl", "tpftl"][..], &cuts].concat());
    let (mut client, mut random, mut errors) = (Client::connect(&server), SplitMix64::new(3), 0);
    // What each sector may hold: what was flushed, and what was written since.
    let mut allowed = vec![vec![0u64]; SECTORS as usize];
    for version in 1..3000u64 {
        let (first, count) = (random.below(SECTORS - 12), 1 + random.below(12));
        let error = if random.below(20) == 0 {
            let error = client.flush();
            if error == 0 {
                allowed.iter_mut().for_each(|sector| drop(sector.drain(..sector.len() - 1)));
            }
            error
        } else {
            let sectors = first as usize..(first + count) as usize;
            allowed[sectors.clone()].iter_mut().for_each(|sector| sector.push(version));
            let (at, data) = (first * 512, version.to_le_bytes().repeat(64 * count as usize));
            if random.below(3) > 0 {
                client.write(at, &data)
            } else {
                let error = client.write_through(at, &data);
                if error == 0 {
                    allowed[sectors].iter_mut().for_each(|sector| drop(sector.drain(..sector.len() - 1)));
                }
                error
            }
        };
        if error == 0 {
            continue;
        }
        errors += 1;
        // What is read before a FLUSH that succeeds is on flash.
        let bytes = loop {
            if let Ok(bytes) = client.try_read(0, 512 * SECTORS as usize)
                && client.flush() == 0
            {
                break bytes;
            }
        };
        for (sector, bytes) in bytes.chunks(512).enumerate() {
            let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(bytes, found.to_le_bytes().repeat(64), "sector {sector} is torn");
            assert!(allowed[sector].contains(&found), "sector {sector} has {found} of {:?}", allowed[sector]);
            allowed[sector] = vec![found];
        }
    }
    assert!(errors > 50, "{errors} power cuts");
}

#[test]
fn a_server_that_cuts_after_so_many_requests_serves_as_many_again_once_power_returned() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--cut-after", "3"]);
    let mut client = Client::connect(&server);
    for _ in 0..2 {
        assert_eq!([(); 5].map(|()| client.write(0, b"x")), [0, 0, 0, IO, IO]);
        server.cut(&["--restore"]);
    }
    assert_eq!((server.stat()["power_cuts"].as_u64(), client.read(0, 1)), (Some(2), b"x".to_vec()));
}

#[test]
fn stat_shows_the_figures_to_people_and_to_prometheus() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--ftl", "cpftl"]);
    let mut client = Client::connect(&server);
    assert_eq!((client.write(0, &[1; 5 * 4096]), client.read(0, 4096).len()), (0, 4096));
    let stat = server.stat();
    assert_eq!((stat["requests"].as_u64(), stat["host_programs"].as_u64()), (Some(2), Some(5)));
    assert_eq!((stat["connections"].as_u64(), &stat["ftl"]), (Some(1), &"cpftl".into()));
    let (mean, sum) = (stat["response_ns"]["mean"].as_f64().unwrap(), stat["response_sum_ns"].as_u64().unwrap());
    assert!(sum > 0 && mean * 2.0 == sum as f64, "{stat}");
    assert!((1..1_000_000_000).contains(&stat["cpu_ns_per_request"].as_u64().unwrap()), "{stat}");
    let text = tessera(&["flash", "stat", &server.control()]).text();
    assert!(text.lines().any(|line| line.split_whitespace().eq(["requests", "2"])), "{text}");
    assert!(text.lines().any(|line| line.starts_with("CPU/req") && line.ends_with(" ns")), "{text}");
    let text = tessera(&["flash", "stat", &server.control(), "--prometheus"]).text();
    for line in [
        "tessera_flash_requests_total 2",
        "tessera_flash_page_programs_total{cause=\"host\"} 5",
        "# TYPE tessera_flash_power gauge",
        "tessera_flash_power 1",
        "# TYPE tessera_flash_response_ns summary",
        "tessera_flash_response_ns_count 2",
        "tessera_flash_write_amplification 1.0",
        "tessera_flash_block_erases_mean 0.0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
}

#[test]
fn a_control_socket_that_is_none_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("named").display().to_string();
    let server = Server::start(dir.path(), &["--control", &named]);
    assert_eq!(fs::metadata(&named).unwrap().permissions().mode() & 0o777, 0o600, "it is its user's alone");
    let nbd = server.socket.display().to_string();
    for command in ["stat", "cut"] {
        assert_refused(&tessera(&["flash", command, &nbd]), 2, &["is the NBD socket", "ssd.sock.control", "--control"]);
        assert_refused(&tessera(&["flash", command, &server.control()]), 3, &["no such socket", "--control"]);
    }
    let other = ["flash", "serve", "--capacity", "64M", "--over-provisioning", "60%", "--nbd", "127.0.0.1:0"];
    let taken = tessera(&[&other[..], &["--control", &named]].concat());
    assert_refused(&taken, 6, &["control socket", "another server", "name another path"]);
    drop(server);
    assert_refused(&tessera(&["flash", "stat", &named]), 4, &["no server listens", "start"]);
}
