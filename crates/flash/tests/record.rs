//! Recording what a program asks of its disks: the trace has it, and the program never notices.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tessera_disk::{Disk, OpenMode, RealDisk, SimDisk};
use tessera_flash::Op;
use tessera_flash::record::Recorder;
use tessera_flash::trace::{Reader, Request};

const MS: u64 = 1_000_000;

/// A file in memory that takes so many bytes.
#[derive(Clone)]
struct Sink {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl Write for Sink {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        if bytes.len() + buffer.len() > self.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A recorder whose clock goes on by 1 ms whenever it is read, its trace, and how often it failed.
fn recorder(room: usize) -> (Recorder, Sink, Arc<AtomicU64>) {
    let sink = Sink { bytes: Arc::default(), room };
    let (now, failures) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let told = failures.clone();
    let on_failure = Box::new(move |_: &io::Error| {
        told.fetch_add(1, Ordering::Relaxed);
    });
    let clock = Box::new(move || now.fetch_add(MS, Ordering::Relaxed));
    (Recorder::new(Box::new(sink.clone()), clock, on_failure), sink, failures)
}

fn text(sink: &Sink) -> String {
    String::from_utf8(sink.bytes.lock().unwrap().clone()).unwrap()
}

fn requests(sink: &Sink) -> Vec<Request> {
    Reader::new(text(sink).as_bytes(), None, false).unwrap().map(|request| request.unwrap()).collect()
}

/// Names, appends, syncs, reads, a replacement, a removal.
fn work(disk: &dyn Disk) {
    disk.create_dir("segments").unwrap();
    let file = disk.open("segments/1", OpenMode::CreateNew).unwrap();
    for i in 0..10 {
        file.write_at(i * 3000, &[7; 3000]).unwrap();
        file.sync_data().unwrap();
    }
    disk.sync_dir("segments").unwrap();
    let mut bytes = [0; 5000];
    file.read_at(4000, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 5000]);
    disk.write_durable("state", b"old").unwrap();
    disk.write_durable("state", b"new").unwrap();
    disk.rename_durable("segments/1", "segments/2").unwrap();
    disk.remove("segments/2").unwrap();
    file.read_at(0, &mut bytes).unwrap();
    assert!(file.as_fd().is_none(), "sendfile would not be seen");
}

#[test]
fn the_trace_has_whole_pages_flushes_and_trims() {
    let (recorder, sink, failures) = recorder(usize::MAX);
    work(&*recorder.wrap(Arc::new(SimDisk::new(1))));
    let totals = recorder.finish();
    assert_eq!(failures.load(Ordering::Relaxed), 0);
    let requests = requests(&sink);
    let written: Vec<(u64, u64)> =
        requests.iter().filter(|r| r.op == Op::Write).map(|r| (r.offset, r.bytes)).take(3).collect();
    assert_eq!(written, [(0, 4096), (0, 8192), (4096, 8192)], "the page of the last byte is written again");
    let [first, second]: [Request; 2] =
        requests.iter().filter(|r| r.op == Op::Trim).copied().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!((first.bytes, second.bytes), (4096, 32_768), "the replaced file, then the removed one");
    assert_ne!((first.offset, second.offset), (0, 0));

    let segments = totals["segments/1"];
    assert_eq!((segments.stored_bytes, segments.flushes), (30_000, 10));
    assert_eq!((totals["segments/"].flushes, totals["state"].stored_bytes), (2, 6), "a rename syncs the directory");
    let mut sums = BTreeMap::new();
    for request in &requests {
        *sums.entry(request.op as usize).or_insert(0) += request.bytes;
    }
    for (op, sum) in sums {
        assert_eq!(totals.values().map(|t| t.bytes[op]).sum::<u64>(), sum, "totals are those of the trace");
    }
    assert_eq!(text(&sink).matches(" datasync ").count() as u64, totals.values().map(|t| t.flushes).sum::<u64>());
}

#[test]
fn equal_work_gives_equal_traces_on_every_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disks: [Arc<dyn Disk>; 3] =
        [Arc::new(SimDisk::new(1)), Arc::new(SimDisk::new(2)), Arc::new(RealDisk::open(dir.path()).unwrap())];
    let traces = disks.map(|disk| {
        let (recorder, sink, _) = recorder(usize::MAX);
        work(&*recorder.wrap(disk));
        recorder.finish();
        text(&sink)
    });
    assert_eq!(traces[0], traces[1]);
    assert_eq!(traces[0], traces[2]);
}

#[test]
fn disks_are_devices_and_what_nobody_synced_is_written_at_the_end() {
    let (recorder, sink, _) = recorder(usize::MAX);
    for device in 0..2 {
        let disk = recorder.wrap(Arc::new(SimDisk::new(device)));
        disk.open("a", OpenMode::Create).unwrap().write_at(0, &[1; 10]).unwrap();
    }
    recorder.finish();
    let written: Vec<(u64, u64)> = requests(&sink).iter().map(|r| (r.device, r.bytes)).collect();
    assert_eq!(written, [(0, 4096), (1, 4096)]);
}

#[test]
fn an_idle_recording_writes_what_waits() {
    let (recorder, sink, _) = recorder(usize::MAX);
    let disk = recorder.wrap(Arc::new(SimDisk::new(1)));
    let file = disk.open("a", OpenMode::Create).unwrap();
    file.write_at(0, &[1; 100]).unwrap();
    file.sync_data().unwrap();
    file.write_at(4096, &[1; 100]).unwrap();
    assert!(text(&sink).is_empty(), "lines wait for 64 KiB or a second");
    recorder.tick();
    assert_eq!(requests(&sink).len(), 1, "the page that was synced");
    // The clock goes on by 1 ms each time, and a dirty page waits for 30 s.
    (0..30_000).for_each(|_| recorder.tick());
    assert_eq!(requests(&sink).len(), 2);
}

#[test]
fn a_trace_that_cannot_be_written_ends_and_the_disk_goes_on() {
    let (recorder, sink, failures) = recorder(200);
    let disk = recorder.wrap(Arc::new(SimDisk::new(1)));
    let file = disk.open("a", OpenMode::Create).unwrap();
    for i in 0..10_000 {
        file.write_at(i * 10, &[1; 10]).unwrap();
        file.sync_data().unwrap();
    }
    work(&*disk);
    recorder.finish();
    assert_eq!(failures.load(Ordering::Relaxed), 1, "it is told once");
    assert!(sink.bytes.lock().unwrap().len() <= 200);
}

#[test]
fn a_refused_operation_is_not_in_the_trace() {
    let (recorder, sink, _) = recorder(usize::MAX);
    let simulated = SimDisk::new(1);
    let disk = recorder.wrap(Arc::new(simulated.clone()));
    let file = disk.open("a", OpenMode::Create).unwrap();
    file.write_at(0, &[1; 100]).unwrap();
    assert!(file.read_at(0, &mut [0; 200]).is_err());
    assert!(disk.open("b", OpenMode::Existing).is_err());
    assert!(disk.remove("b").is_err());
    assert!(disk.rename("b", "a").is_err());
    recorder.finish();
    assert_eq!(requests(&sink).len(), 1, "the write at the end");
}
