use super::*;
use proptest::prelude::*;

const CAPACITY: usize = 1 << 20;
const PAGE: usize = 4096;

fn config(write_buffer: u64) -> Config {
    Config { over_provisioning: 5.0, write_buffer, contents: true, ..Config::new(CAPACITY as u64, "dftl") }
}

fn all(emulator: &mut Emulator) -> Vec<u8> {
    let mut all = vec![1; CAPACITY];
    emulator.read(0, 0, &mut all).unwrap();
    all
}

/// Does a step of a test to an emulator and to plain bytes; returns the pages that it touched.
fn step(emulator: &mut Emulator, bytes: &mut [u8], (kind, offset, len, value): Step) -> std::ops::Range<usize> {
    let range = offset..(offset + len).min(CAPACITY);
    let (at, len) = (offset as u64, range.len() as u64);
    let touched = range.start / PAGE..range.end.div_ceil(PAGE);
    match kind {
        0 | 1 => {
            bytes[range.clone()].fill(value);
            emulator.write(0, at, &bytes[range]).unwrap();
        }
        2 => {
            bytes[range].fill(0);
            emulator.zero(0, at, len, value % 2 == 0).unwrap();
        }
        3 => {
            let whole = offset.next_multiple_of(PAGE)..(offset + len as usize) / PAGE * PAGE;
            if whole.start < whole.end {
                bytes[whole].fill(0);
            }
            emulator.trim(0, at, len).unwrap();
        }
        _ => {
            let mut read = vec![1; range.len()];
            emulator.read(0, at, &mut read).unwrap();
            assert!(read == bytes[range]);
        }
    }
    touched
}

type Step = (u8, usize, usize, u8);

fn steps(kinds: u8, most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..kinds, 0..CAPACITY, 0..9000usize, any::<u8>()), 1..most)
}

/// Pages that are read together, again and again, are pairs that CPFTL mines.
#[test]
fn a_layer_that_learns_does_so_after_its_lesson() {
    const LESSON: u64 = 4_000;
    let config = Config { map_cache: 8 << 10, over_provisioning: 5.0, ..Config::new(4 << 20, "cpftl") };
    let mut emulator = Emulator::new(&config).unwrap();
    let pairs = |emulator: &Emulator| {
        let figures = emulator.ssd().layer_figures();
        figures.iter().find(|(name, _)| *name == "mined_pairs").unwrap().1
    };
    emulator.write(0, 0, &vec![7; 4 << 20]).unwrap();
    assert!(emulator.plan_learning(LESSON));
    let mut read = vec![0; PAGE];
    for number in 0..LESSON / 2 + LESSON {
        assert_eq!(pairs(&emulator), 0, "it has read {number} pages");
        if number == LESSON / 2 {
            emulator.cut_power(0, None);
            emulator.restore_power(0);
        }
        let page = number * 131 % 1024;
        emulator.read(0, page * PAGE as u64, &mut read).unwrap();
    }
    assert!(pairs(&emulator) > 0);
    emulator.cut_power(0, None);
    emulator.restore_power(0);
    for number in 0..LESSON {
        assert_eq!(pairs(&emulator), 0, "it has read {number} pages since the second cut");
        emulator.read(0, number * 131 % 1024 * PAGE as u64, &mut read).unwrap();
    }
    assert!(pairs(&emulator) > 0, "a cut after the lesson begins another one");
    emulator.ssd().check().unwrap();
    emulator.read(0, 0, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
    assert!(!Emulator::new(&self::config(0)).unwrap().plan_learning(LESSON), "dftl learns nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn it_equals_plain_bytes(steps in steps(5, 80), buffer in 0..3u64) {
        let mut emulator = Emulator::new(&config(buffer * 65_536)).unwrap();
        let mut bytes = vec![0u8; CAPACITY];
        for one in steps {
            step(&mut emulator, &mut bytes, one);
        }
        prop_assert!(all(&mut emulator) == bytes);
        emulator.ssd().check().unwrap();
    }

    /// Kind 5 flushes, and 6 cuts the power. Each page is then as it was flushed, or as a request left it since.
    #[test]
    fn after_a_cut_what_was_flushed_is_there_and_every_page_is_old_or_new(steps in steps(7, 120), buffer in 0..3u64) {
        let mut emulator = Emulator::new(&config(buffer * 65_536)).unwrap();
        let mut bytes = vec![0u8; CAPACITY];
        let page = |bytes: &[u8], page: usize| bytes[page * PAGE..(page + 1) * PAGE].to_vec();
        let mut since: HashMap<usize, Vec<Vec<u8>>> = HashMap::new();
        for one in steps {
            match one.0 {
                5 => {
                    emulator.flush(0).unwrap();
                    since.clear();
                }
                6 => {
                    emulator.cut_power(0, None);
                    prop_assert!(matches!(emulator.read(0, 0, &mut [0]), Err(Refusal::PowerOff)));
                    emulator.restore_power(0);
                    let left = all(&mut emulator);
                    for number in 0..CAPACITY / PAGE {
                        let (is, was) = (page(&left, number), page(&bytes, number));
                        let is_kept = is == was;
                        let is_old = buffer > 0 && since.get(&number).is_some_and(|states| states.contains(&is));
                        prop_assert!(is_kept || is_old, "page {number}");
                    }
                    emulator.ssd().check().unwrap();
                    bytes = left;
                    since.clear();
                }
                _ => {
                    let before = bytes.clone();
                    for number in step(&mut emulator, &mut bytes, one) {
                        since.entry(number).or_default().push(page(&before, number));
                    }
                }
            }
        }
    }

    /// The simulated flash numbers the writes of pages: after a cut it and the bytes name the same one.
    #[test]
    fn after_a_cut_the_bytes_are_those_of_the_write_that_flash_has(
        writes in prop::collection::vec((0..64u64, any::<bool>()), 1..200),
    ) {
        let mut emulator = Emulator::new(&config(65_536)).unwrap();
        for (page, cut) in writes {
            let number = emulator.ssd.content + 1;
            emulator.write(0, page * PAGE as u64, &[&number.to_le_bytes()[..], &[9; PAGE - 4]].concat()).unwrap();
            if !cut {
                continue;
            }
            emulator.cut_power(0, None);
            emulator.restore_power(0);
            for page in 0..64 {
                let mut bytes = [0; 4];
                emulator.read(0, page * PAGE as u64, &mut bytes).unwrap();
                prop_assert_eq!(u32::from_le_bytes(bytes), emulator.ssd.content(page as u32).unwrap_or(0));
            }
        }
    }
}

#[test]
fn what_only_the_write_buffer_had_is_lost_and_power_returns_when_it_is_due() {
    let mut emulator = Emulator::new(&config(65_536)).unwrap();
    emulator.write(0, 0, &[1; 3 * PAGE]).unwrap();
    emulator.flush(0).unwrap();
    emulator.write(0, 100, &[2; 4]).unwrap();
    assert_eq!(emulator.cut_power(10, Some(1_000)), 1);
    assert!(matches!(emulator.write(999, 0, &[3]), Err(Refusal::PowerOff)));
    let mut bytes = [0; 200];
    let done = emulator.read(1_000, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 200]);
    let figures = emulator.figures();
    assert_eq!((figures.power_cuts, figures.recovery > 0), (1, true));
    assert!(done > 1_000 + figures.recovery, "the read waits for the map: {done}");
}

#[test]
fn cuts_come_after_so_many_requests_and_by_a_seed_after_fewer() {
    let served = |seed| {
        let mut emulator = Emulator::new(&config(0)).unwrap();
        emulator.plan_cuts(Cuts { after: 20, seed, off_for: Some(1) });
        let (mut runs, mut run) = (Vec::new(), 0);
        for now in 0..200 {
            match emulator.write(2 * now, 0, &[1]) {
                Ok(_) => run += 1,
                Err(_) => unreachable!("power is back after 1 ns"),
            }
            if emulator.power == (Power::Off { until: Some(2 * now + 1) }) {
                runs.push(std::mem::take(&mut run));
            }
        }
        runs
    };
    assert_eq!(served(None), [20; 10]);
    let random = served(Some(7));
    assert!(random.len() > 10 && random.iter().all(|run| (1..=20).contains(run)), "{random:?}");
    assert_eq!(random, served(Some(7)));
}

/// A backing that is full now and then.
struct Full {
    memory: Memory,
    is_full: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Full {
    fn check(&self) -> io::Result<()> {
        let is_full = self.is_full.load(std::sync::atomic::Ordering::Relaxed);
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Backing for Full {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.memory.read(offset, buffer)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.memory.write(offset, data)
    }

    fn zero(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        self.memory.zero(offset, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.check()
    }
}

#[test]
fn what_was_acknowledged_waits_while_the_backing_is_full_and_takes_bounded_memory() {
    let is_full = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let backing = Full { memory: Memory::new(PAGE as u32), is_full: is_full.clone() };
    let mut emulator = Emulator::with_backing(&config(65_536), Box::new(backing)).unwrap();
    let acknowledged: Vec<bool> =
        (0..100).map(|page| emulator.write(0, page * PAGE as u64, &[7; PAGE]).is_ok()).collect();
    assert_eq!(acknowledged.iter().filter(|ok| **ok).count(), 7, "the half of the buffer, less the page that fills it");
    assert!(emulator.volatile.len() <= 8, "{}", emulator.volatile.len());
    assert!(emulator.flush(0).is_err());
    emulator.trim(0, 6 * PAGE as u64, 94 * PAGE as u64).expect("a TRIM makes room");
    is_full.store(false, std::sync::atomic::Ordering::Relaxed);
    emulator.flush(0).unwrap();
    emulator.cut_power(0, None);
    emulator.restore_power(0);
    let (there, trimmed) = (&all(&mut emulator)[..6 * PAGE], &all(&mut emulator)[6 * PAGE..]);
    assert_eq!(there, [7; 6 * PAGE]);
    assert!(trimmed.iter().all(|byte| *byte == 0));
}

/// A hole that a file system punches through FUSE is such a request.
#[test]
fn whole_pages_become_zero_while_what_waits_has_no_room() {
    let is_full = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let backing = Full { memory: Memory::new(PAGE as u32), is_full: is_full.clone() };
    let mut emulator = Emulator::with_backing(&config(65_536), Box::new(backing)).unwrap();
    let page = |number: usize| (number * PAGE) as u64;
    let acknowledged = (0..8).filter(|number| emulator.write(0, page(*number), &[7; PAGE]).is_ok()).count();
    assert_eq!(acknowledged, 7);
    emulator.zero(0, page(3), page(2), false).expect("nothing is written");
    for (offset, bytes, stay) in
        [(page(5), page(1), true), (page(5) + 1, page(2), false), (page(5), page(1) + 1, false)]
    {
        let refused = emulator.zero(0, offset, bytes, stay);
        assert!(matches!(refused, Err(Refusal::Backing(_))), "{bytes} bytes at {offset}: something is written");
    }
    is_full.store(false, std::sync::atomic::Ordering::Relaxed);
    emulator.flush(0).unwrap();
    let left = all(&mut emulator);
    assert_eq!([0, 1, 2, 3, 4, 7].map(|number| left[number * PAGE]), [7, 7, 7, 0, 0, 7]);
    emulator.ssd().check().unwrap();
}

#[test]
fn a_flash_that_is_laid_out_anew_has_the_pages_with_data_once_and_figures_at_zero() {
    let mut emulator = Emulator::new(&config(65_536)).unwrap();
    emulator.preload([0..5_000, 6_000..9_000, 20_480..20_481]);
    let mapped = (0..256).filter(|page| emulator.ssd.content(*page).is_some()).collect::<Vec<_>>();
    assert_eq!((mapped, emulator.figures().counters.all_programs()), (vec![0, 1, 2, 5], 0));
    emulator.ssd().check().unwrap();
}
