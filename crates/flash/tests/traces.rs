//! Every trace format: recognized, read exactly, wrong lines named, no input panics.

use proptest::prelude::*;
use tessera_flash::Op;
use tessera_flash::trace::{FORMATS, LINE_MAX, Reader, Request, TraceError, find};

fn read(text: &str) -> (&'static str, Vec<Request>) {
    let reader = Reader::new(text.as_bytes(), None, false).unwrap();
    (reader.format().name, reader.map(|r| r.unwrap_or_else(|e| panic!("{e}"))).collect())
}

fn request(at: u64, op: Op, device: u64, offset: u64, bytes: u64) -> Request {
    Request { at, op, device, offset, bytes }
}

#[test]
fn each_format_is_recognized_and_read() {
    let cases = [
        (
            "spc",
            "0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214\n",
            [request(0, Op::Write, 0, 303_567 * 512, 3584), request(26_214_000, Op::Read, 1, 55_590 * 512, 3072)],
        ),
        (
            "msr",
            "128166372003061629,usr,0,Read,7014609920,24576,41286\n128166372016382155,usr,1,Write,2657792,512,1963\n",
            [request(0, Op::Read, 0, 7_014_609_920, 24_576), request(1_332_052_600, Op::Write, 1, 2_657_792, 512)],
        ),
        (
            "disksim",
            "15849.28847 0 6198696 8 0\n15850.59734 2 6198704 2048 1\n",
            [
                request(0, Op::Write, 0, 6_198_696 * 512, 4096),
                request(1_308_870, Op::Read, 2, 6_198_704 * 512, 1 << 20),
            ],
        ),
        (
            "ssdsim",
            "938513000 4 264719034 16 0\n938828000 3 197570570 8 1\n",
            [request(0, Op::Write, 4, 264_719_034 * 512, 8192), request(315_000, Op::Read, 3, 197_570_570 * 512, 4096)],
        ),
        (
            "vscsi",
            "version,time,op,size,lbn\n1,5633898,2a,512,42932745\n1,5633898,12,0,0\n1,5633899,28,6656,40409911\n",
            [
                request(0, Op::Write, 0, 42_932_745 * 512, 512),
                request(1_000_000_000, Op::Read, 0, 40_409_911 * 512, 6656),
            ],
        ),
        (
            "tencent",
            "1538323200,4247200,64,1,1058\n1538323199,13896880,16,0,1063\n",
            [request(0, Op::Write, 1058, 4_247_200 * 512, 32_768), request(0, Op::Read, 1063, 13_896_880 * 512, 8192)],
        ),
        (
            "blkparse",
            "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n\
             \x20 8,0    3        2     0.000001829   697  D  WS 223490 + 8 [kjournald]\n\
             \x20 8,0    3        3     0.000002829   697  D   F [kjournald]\n\
             \x20 8,0    1        4     0.000011829   697  D   D 8 + 16 [fstrim]\nCPU0 (8,0):\n Reads Queued: 0\n",
            [request(0, Op::Write, 8 << 32, 223_490 * 512, 4096), request(10_000, Op::Trim, 8 << 32, 4096, 8192)],
        ),
        (
            "fio",
            "fio version 2 iolog\n/dev/x add\n/dev/x open\n/dev/x read 0 4096\n/dev/x wait 150 0\n/dev/x trim 8192 4096\n",
            [request(0, Op::Read, 0, 0, 4096), request(150_000, Op::Trim, 0, 8192, 4096)],
        ),
        (
            "fio",
            "fio version 3 iolog\n10 /dev/x open\n20 /dev/x write 512 1024\n35 /dev/y read 8192 4096\n",
            [request(0, Op::Write, 0, 512, 1024), request(15_000, Op::Read, 1, 8192, 4096)],
        ),
    ];
    for (format, text, expected) in cases {
        assert_eq!(read(text), (format, expected.to_vec()));
    }
}

#[test]
fn a_wrong_line_is_named_or_counted() {
    let text = "0,1,512,w,0.0\n0,1,x12,w,0.0\n0,1\n0,2,512,R,1.0\n";
    let mut strict = Reader::new(text.as_bytes(), None, false).unwrap();
    assert!(strict.next().unwrap().is_ok());
    let error = strict.next().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("line 2: field `size` is `x12`; it must be a whole number"), "{error}");
    let mut lenient = Reader::new(text.as_bytes(), find("spc"), true).unwrap();
    assert_eq!((lenient.by_ref().map(Result::unwrap).count(), lenient.skipped()), (2, 2));
}

#[test]
fn formats_with_the_same_lines_are_named_together_and_others_are_told_apart() {
    let detected = |text: &str| Reader::new(text.as_bytes(), None, false).map(|reader| reader.format().names());
    assert_eq!(detected("11413000 0 657728 16 1\n").unwrap(), ["ssdsim", "mqsim"]);
    assert_eq!(detected("128166372003061629,5,0,Read,7014609920,24576,41286\n").unwrap(), ["msr"], "a host named `5`");
    assert_eq!(detected("1,5633898,28,4096,42932745\n").unwrap(), ["vscsi"], "0 and 1 are operations of Tencent's");
    // A second of Tencent's, or a version of CloudPhysics'.
    let error = detected("1,4247200,64,1,1058\n1,13896880,16,0,1063\n").unwrap_err().to_string();
    assert_eq!(error, "the first lines of the trace may be vscsi or tencent; name the format with --format");
}

#[test]
fn times_in_whole_ms_are_not_taken_for_ns() {
    let detected = |text: &str| Reader::new(text.as_bytes(), None, false).map(|reader| reader.format().name);
    let lines = |step: u64| (0..100).map(|i| format!("{} 0 {} 8 {}\n", i * step, i * 8, i % 2)).collect::<String>();
    let either = "the first lines of the trace may be disksim or ssdsim; name the format with --format";
    assert_eq!(detected(&lines(15)).unwrap_err().to_string(), either);
    assert_eq!(detected(&lines(20_000)).unwrap(), "ssdsim");
    // One time with a fraction, or a flag that is no bit, tells.
    assert_eq!(detected(&(lines(15) + "1500.5 0 8 8 1\n")).unwrap_err().to_string(), either, "it is no first line");
    assert_eq!(detected(&("7.5 0 8 8 1\n".to_owned() + &lines(15))).unwrap(), "disksim");
    assert_eq!(detected(&("7 0 8 8 9\n".to_owned() + &lines(20_000))).unwrap(), "disksim");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_line() {
    for text in
        ["0,1,512,w,0.0\n", "fio version 3 iolog\n0 x write 512 512\n", "version,time,op,size,lbn\n1,5,2a,512,1\n"]
    {
        assert_eq!(read(&format!("\u{feff}{text}")), read(text));
    }
}

#[test]
fn devices_keep_their_numbers() {
    let msr = "1,usr,3,Read,0,512,1\n2,usr,1,Read,0,512,1\n3,web,0,Read,0,512,1\n";
    let numbers = |text: &str| read(text).1.iter().map(|r| r.device).collect::<Vec<_>>();
    assert_eq!(numbers(msr), [3, 1, 1 << 44], "hosts one after the other, each by the numbers of its disks");
    let fio = |names: [&str; 4]| {
        let lines = names.map(|name| format!("{name} read 0 4096\n"));
        numbers(&format!("fio version 2 iolog\n{}", lines.concat()))
    };
    assert_eq!(fio(["device7", "device0", "device7", "device3"]), [7, 0, 7, 3]);
    assert_eq!(fio(["/dev/a", "device0", "device7", "/dev/b"]), [0, 1, 7, 2], "no two files share a number");
}

#[test]
fn an_iolog_names_files_before_their_requests_and_has_no_comments() {
    let mut lines = find("fio").unwrap().writer.unwrap().begin(&["SYNTHETIC".into(), "2 requests".into()]);
    let mut text = lines.heading();
    for r in [
        request(1_000, Op::Read, 7, 0, 512),
        request(9_000, Op::Write, 2, 512, 512),
        request(9_000, Op::Trim, 7, 0, 512),
    ] {
        text.extend(lines.request(&r));
    }
    // fio loses the time of lines that open files, so they have that of the request before.
    let expected = "fio version 3 iolog\n0 device7 add # SYNTHETIC; 2 requests\n0 device7 open\n1 device7 read 0 512\n\
                    1 device2 add\n1 device2 open\n9 device2 write 512 512\n9 device7 trim 0 512";
    assert_eq!(text.join("\n"), expected);
    assert_eq!(read(expected).1.iter().map(|r| r.device).collect::<Vec<_>>(), [7, 2, 7]);
}

/// Ends with an error, as a decompressor does that finds a wrong checksum.
struct Damaged<'a>(&'a [u8]);

impl std::io::Read for Damaged<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(std::io::Error::other("the checksum is wrong")),
            read => Ok(read),
        }
    }
}

#[test]
fn a_damaged_file_is_not_taken_for_wrong_lines() {
    let (spc, other) = ("0,1,512,w,0.0\n".repeat(20_000), "what is this\n".repeat(20_000));
    for (text, format) in [(&spc, find("msr")), (&other, None)] {
        let read = |has_checksum| {
            Reader::with_checksum(Damaged(text.as_bytes()), format, false, has_checksum)
                .and_then(|mut reader| reader.find_map(Result::err).map_or(Ok(()), Err))
        };
        let error = read(true).unwrap_err().to_string();
        assert!(error.contains("the checksum is wrong"), "{error}");
        let error = read(false).unwrap_err().to_string();
        assert!(error.contains("--format") || error.contains("--skip-bad"), "{error}");
    }
}

#[test]
fn a_line_without_end_takes_no_memory() {
    let long = format!("0,1,512,w,0.0\n{}\n0,2,512,R,1.0\n", "9".repeat(5 * LINE_MAX));
    let mut reader = Reader::new(long.as_bytes(), find("spc"), true).unwrap();
    assert_eq!((reader.by_ref().map(Result::unwrap).count(), reader.skipped()), (2, 1));
    assert!(matches!(Reader::new(&b"what is this\n"[..], None, false), Err(TraceError::Unknown { .. })));
}

/// Each device takes memory in a layout, whatever its number is.
#[test]
fn a_trace_with_more_than_2_20_devices_is_refused() {
    let numbers = (0..=1u64 << 20).chain([5]).map(|device| device * 1_000_003);
    let text: String = numbers.map(|device| format!("{device},0,512,R,0.0\n")).collect();
    let read = |skip_bad| Reader::new(text.as_bytes(), find("spc"), skip_bad).unwrap();
    let error = read(false).find_map(Result::err).unwrap().to_string();
    assert!(error.starts_with("line 1048577:") && error.contains("2^20 devices"), "{error}");
    let mut skipping = read(true);
    assert_eq!((skipping.by_ref().count(), skipping.skipped()), ((1 << 20) + 1, 1));
}

#[test]
fn time_never_goes_back() {
    let mut reader = Reader::new(&b"5 0 0 8 1\n9 0 0 8 1\n7 0 0 8 1\n1 0 0 8 1\n"[..], find("ssdsim"), false).unwrap();
    let times: Vec<u64> = reader.by_ref().map(|r| r.unwrap().at).collect();
    assert_eq!((times, reader.reordered()), (vec![0, 4, 4, 4], 2));
}

#[test]
fn a_time_after_which_nothing_fits_is_refused() {
    let read = |last: u64| {
        let text = format!("1000000000 0 0 8 1\n{last} 0 0 8 1\n");
        Reader::new(text.as_bytes(), find("ssdsim"), false).unwrap().find_map(Result::err)
    };
    assert!(read(1_000_000_000 + (1 << 62)).is_none());
    let error = read(1_000_000_001 + (1 << 62)).unwrap().to_string();
    assert!(error.contains("`4611686019427387905 ns`; it must be at most 2^62 ns after the first"), "{error}");
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        requests in prop::collection::vec((0u64..1 << 40, any::<bool>(), 0u64..4, 0u64..1 << 30, 1u64..100), 1..40),
    ) {
        let mut requests: Vec<Request> = requests.into_iter()
            .map(|(us, read, device, sector, sectors)| {
                request(us * 1000, if read { Op::Read } else { Op::Write }, device, sector * 512, sectors * 512)
            }).collect();
        requests.sort_by_key(|r| r.at);
        let first = requests[0].at;
        let expected: Vec<Request> = requests.iter().map(|r| Request { at: r.at - first, ..*r }).collect();
        for (format, writer) in FORMATS.iter().filter_map(|format| Some((format, format.writer?))) {
            let mut lines = writer.begin(&["what it is".into()]);
            let mut text = lines.heading();
            text.extend(requests.iter().flat_map(|request| lines.request(request)));
            let found = Reader::new(text.join("\n").as_bytes(), Some(format), false).unwrap().map(Result::unwrap).collect::<Vec<_>>();
            prop_assert_eq!(found, expected.clone(), "{}", format.name);
        }
    }

    #[test]
    fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for format in FORMATS {
            for skip in [false, true] {
                let read = Reader::new(&bytes[..], Some(format), skip).unwrap();
                read.take(1000).for_each(drop);
            }
        }
        let _ = Reader::new(&bytes[..], None, false).map(Iterator::count);
    }

    #[test]
    fn no_line_of_fields_panics(
        fields in prop::collection::vec("[0-9]{0,21}|-?[0-9]{1,3}\\.[0-9]{0,12}|[RWrwDF+]|read|write|wait|8,0|1e300", 0..12),
        comma in any::<bool>(),
    ) {
        let line = fields.join(if comma { "," } else { " " });
        for format in FORMATS {
            let text = format!("fio version 2 iolog\n{line}\n{line}\n");
            let read = Reader::new(text.as_bytes(), Some(format), true).unwrap();
            read.for_each(|r| drop(r.map(|r| assert!(r.end() <= 1 << 60))));
        }
    }
}
