//! The architecture: banks, ranks, rows and NUMA domains, from a file, a preset or the kernel.
//!
//! ```toml
//! preset = "pcm"        # or "ddr4"; the keys below change it
//! banks = 32            # of one NUMA domain, all ranks together
//! ranks = 1
//! row_bytes = 8192      # size of a row buffer, a power of two
//! page_bytes = 4096     # pages that hold the data; huge pages make more banks known
//! bank_weights = []     # share of each bank, domain after domain; empty: equal
//!
//! [[domain]]            # none: one domain with every CPU
//! cpus = "0-3,8"        # as the kernel writes lists of CPUs
//! ```
//!
//! The kernel reports domains and CPUs. It does not report rows and banks, so these have the values of `ddr4` then.

use crate::Error;
use serde::Deserialize;
use std::fmt::Display;
use std::path::Path;

/// Bytes that a cache line has, and that one request to the memory transfers.
pub const LINE_BYTES: usize = 64;

/// CPUs that share a memory controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Their numbers; empty: any CPU.
    pub cpus: Vec<usize>,
}

/// What ArchSampler knows of the memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    /// Banks of one NUMA domain, in all its ranks.
    pub banks: usize,
    /// Ranks of one NUMA domain.
    pub ranks: usize,
    /// Bytes of a row: what a bank's row buffer holds.
    pub row_bytes: usize,
    /// Bytes of the pages that hold the data.
    pub page_bytes: usize,
    /// NUMA domains.
    pub domains: Vec<Domain>,
    /// Weight of each bank in a balanced selection, domain after domain.
    pub bank_weights: Vec<f64>,
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    preset: Option<String>,
    banks: Option<i64>,
    ranks: Option<i64>,
    row_bytes: Option<i64>,
    page_bytes: Option<i64>,
    #[serde(default)]
    bank_weights: Vec<f64>,
    #[serde(default)]
    domain: Vec<DomainText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DomainText {
    cpus: String,
}

/// Presets: name, banks, ranks, bytes of a row.
const PRESETS: &[(&str, usize, usize, usize)] = &[
    // Table 2.1 of ArchSampler: 32 banks, "a typical 8KB row buffer size"; it names no ranks.
    ("pcm", 32, 1, 8192),
    // A DDR4 DIMM of two ranks of x8 chips: 16 banks a rank, 1 KiB of row in each of 8 chips (JESD79-4).
    ("ddr4", 32, 2, 8192),
];

/// Bytes of a page unless the file says otherwise.
const PAGE_BYTES: usize = 4096;
/// Most banks of a domain: far beyond any memory, so that a typing error is found.
const MAX_BANKS: i64 = 4096;

impl Architecture {
    /// An architecture of one domain with every CPU. `None` if no preset has this name.
    pub fn preset(name: &str) -> Option<Architecture> {
        let (_, banks, ranks, row_bytes) = *PRESETS.iter().find(|preset| preset.0 == name)?;
        let domains = vec![Domain { cpus: Vec::new() }];
        Some(Architecture { banks, ranks, row_bytes, page_bytes: PAGE_BYTES, domains, bank_weights: vec![1.0; banks] })
    }

    /// Reads an architecture file.
    ///
    /// # Errors
    /// It cannot be read, is not TOML, or a key has a value that no memory has.
    pub fn read(path: &Path) -> Result<Architecture, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(path.display(), error))?;
        Architecture::parse(&text, &path.display().to_string())
    }

    /// Reads the text of an architecture file; `file` is its name in messages.
    ///
    /// # Errors
    /// As [`Architecture::read`].
    pub fn parse(text: &str, file: &str) -> Result<Architecture, Error> {
        let check = Check { file };
        let text: Text = toml::from_str(text).map_err(|error| {
            let message = error.to_string().trim_end().replace('\n', " ");
            check.error("architecture", message, "the keys are described in docs/sampling.md")
        })?;
        let name = text.preset.as_deref().unwrap_or("ddr4");
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.0).collect();
        let mut found = Architecture::preset(name).ok_or_else(|| {
            check.error("preset", format!("`{name}` is none"), format!("write {}", names.join(" or ")))
        })?;
        found.banks = check.within("banks", text.banks, found.banks, 1..=MAX_BANKS)?;
        // A file that changes only the banks need not know what ranks the preset has.
        let default = if found.banks.is_multiple_of(found.ranks) { found.ranks } else { 1 };
        found.ranks = check.within("ranks", text.ranks, default, 1..=MAX_BANKS)?;
        found.row_bytes = check.power_of_two("row_bytes", text.row_bytes, found.row_bytes)?;
        found.page_bytes = check.power_of_two("page_bytes", text.page_bytes, found.page_bytes)?;
        if !found.banks.is_multiple_of(found.ranks) {
            let fact = format!("{} banks are not divided evenly by {} ranks", found.banks, found.ranks);
            return Err(check.error("ranks", fact, "`banks` counts the banks of all ranks"));
        }
        if !text.domain.is_empty() {
            found.domains = check.domains(&text.domain)?;
        }
        found.bank_weights = check.weights(text.bank_weights, found.all_banks())?;
        Ok(found)
    }

    /// The NUMA domains and CPUs of this machine, with rows and banks as `ddr4` has them.
    ///
    /// # Errors
    /// The kernel's report cannot be read.
    pub fn of_kernel() -> Result<Architecture, Error> {
        Architecture::of_nodes(Path::new("/sys/devices/system/node"))
    }

    /// As [`Architecture::of_kernel`], from a directory that looks like `/sys/devices/system/node`. Without it there is
    /// one domain. A node that has no CPU, or no memory, is no domain: nothing runs there, or nothing lies there.
    ///
    /// # Errors
    /// A file in it cannot be read, or is no list of numbers.
    pub fn of_nodes(nodes: &Path) -> Result<Architecture, Error> {
        let mut found = Architecture::preset("ddr4").expect("it is in the table");
        if !nodes.join("online").exists() {
            return Ok(found);
        }
        let list = |path: &Path| -> Result<Vec<usize>, Error> {
            let text = std::fs::read_to_string(path).map_err(|error| Error::io(path.display(), error))?;
            parse_list(text.trim()).map_err(|message| Error::io(path.display(), message))
        };
        let with_memory = match nodes.join("has_memory") {
            path if path.exists() => list(&path)?,
            _ => list(&nodes.join("online"))?,
        };
        let mut domains = Vec::new();
        for node in with_memory {
            let cpus = list(&nodes.join(format!("node{node}/cpulist")))?;
            domains.extend((!cpus.is_empty()).then_some(Domain { cpus }));
        }
        if !domains.is_empty() {
            found.domains = domains;
        }
        found.bank_weights = vec![1.0; found.all_banks()];
        Ok(found)
    }

    /// Banks of all domains.
    pub fn all_banks(&self) -> usize {
        self.banks * self.domains.len()
    }

    /// Whether virtual addresses tell the bank. The bits that select it are those above the offset in a row; the kernel
    /// keeps the bits below the page size (the page offset rule of ArchSampler, section on methodology). Otherwise the
    /// groups are those of virtual addresses: selection and intervals stay right, but rows of a group may share no bank.
    pub fn banks_are_known(&self) -> bool {
        self.row_bytes * self.banks <= self.page_bytes
    }
}

/// Checks values; every error names key, fact and way out.
struct Check<'a> {
    file: &'a str,
}

impl Check<'_> {
    fn error(&self, key: &str, fact: impl Display, way_out: impl Display) -> Error {
        let (file, key) = (self.file.to_string(), key.to_string());
        Error::Architecture { file, key, fact: fact.to_string(), way_out: way_out.to_string() }
    }

    fn within(
        &self,
        key: &str,
        value: Option<i64>,
        default: usize,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<usize, Error> {
        match value {
            None => Ok(default),
            Some(value) if range.contains(&value) => Ok(value as usize),
            Some(value) => {
                let way_out = format!("write a number from {} to {}", range.start(), range.end());
                Err(self.error(key, format!("{value} is outside the range"), way_out))
            }
        }
    }

    fn power_of_two(&self, key: &str, value: Option<i64>, default: usize) -> Result<usize, Error> {
        let size = self.within(key, value, default, LINE_BYTES as i64..=1 << 30)?;
        if size.is_power_of_two() {
            return Ok(size);
        }
        let way_out = format!("write {} or {}", size.next_power_of_two() / 2, size.next_power_of_two());
        Err(self.error(key, format!("{size} is no power of two"), way_out))
    }

    fn domains(&self, texts: &[DomainText]) -> Result<Vec<Domain>, Error> {
        let mut taken = std::collections::BTreeSet::new();
        let mut domains = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            let key = format!("domain[{i}].cpus");
            let cpus =
                parse_list(&text.cpus).map_err(|fact| self.error(&key, fact, "write a list such as \"0-3,8\""))?;
            if cpus.is_empty() {
                return Err(self.error(&key, "no CPU", "name at least one, or leave the domain out"));
            }
            if let Some(twice) = cpus.iter().find(|cpu| !taken.insert(**cpu)) {
                return Err(self.error(&key, format!("CPU {twice} is named twice"), "a CPU belongs to one domain"));
            }
            domains.push(Domain { cpus });
        }
        Ok(domains)
    }

    fn weights(&self, weights: Vec<f64>, banks: usize) -> Result<Vec<f64>, Error> {
        if weights.is_empty() {
            return Ok(vec![1.0; banks]);
        }
        if weights.len() != banks {
            let fact = format!("{} weights for {banks} banks", weights.len());
            return Err(self.error("bank_weights", fact, "write one for each bank, domain after domain, or none"));
        }
        match weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
            None => Ok(weights),
            Some(wrong) => Err(self.error("bank_weights", format!("{wrong} is no weight"), "write numbers above 0")),
        }
    }
}

/// Reads a list of numbers as the kernel writes it: `0-3,8`.
fn parse_list(text: &str) -> Result<Vec<usize>, String> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| format!("`{part}` is no number or range"));
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last >= rustix::thread::CpuSet::MAX_CPU {
            return Err(format!("`{part}` is no range of numbers below {}", rustix::thread::CpuSet::MAX_CPU));
        }
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_changes_its_preset() {
        let text = "preset = \"pcm\"\nbanks = 4\nranks = 2\nrow_bytes = 1024\nbank_weights = [1, 1, 1, 1, 2, 2, 2, 2]\n\
                    [[domain]]\ncpus = \"0-1,4\"\n[[domain]]\ncpus = \"2\"";
        let found = Architecture::parse(text, "a.toml").unwrap();
        assert_eq!((found.banks, found.ranks, found.row_bytes, found.all_banks()), (4, 2, 1024, 8));
        assert_eq!(found.domains, [Domain { cpus: vec![0, 1, 4] }, Domain { cpus: vec![2] }]);
        assert_eq!(found.bank_weights[3..5], [1.0, 2.0]);
        assert_eq!(Architecture::parse("", "a.toml").unwrap(), Architecture::preset("ddr4").unwrap());
    }

    #[test]
    fn errors_name_file_key_fact_and_way_out() {
        for (text, expected) in [
            ("banks = 0", "`m.toml`, `banks`: 0 is outside the range; write a number from 1 to 4096"),
            ("row_bytes = 8000", "`m.toml`, `row_bytes`: 8000 is no power of two; write 4096 or 8192"),
            ("ranks = 3", "`m.toml`, `ranks`: 32 banks are not divided evenly by 3 ranks; `banks` counts"),
            ("preset = \"mram\"", "`m.toml`, `preset`: `mram` is none; write pcm or ddr4"),
            ("bank_weights = [1]", "`m.toml`, `bank_weights`: 1 weights for 32 banks; write one for each bank"),
            ("banks = 1\nranks = 1\nbank_weights = [-1]", "`m.toml`, `bank_weights`: -1 is no weight; write numbers"),
            (
                "[[domain]]\ncpus = \"3-1\"",
                "`m.toml`, `domain[0].cpus`: `3-1` is no range of numbers below 1024; write",
            ),
            ("[[domain]]\ncpus = \"\"", "`m.toml`, `domain[0].cpus`: no CPU; name at least one"),
            (
                "[[domain]]\ncpus = \"0-9\"\n[[domain]]\ncpus = \"9\"",
                "`m.toml`, `domain[1].cpus`: CPU 9 is named twice;",
            ),
        ] {
            let found = Architecture::parse(text, "m.toml").unwrap_err().to_string();
            assert!(found.starts_with(expected), "{found}");
        }
        let unknown = Architecture::parse("bnaks = 3", "m.toml").unwrap_err().to_string();
        assert!(unknown.contains("bnaks") && unknown.contains("docs/sampling.md"), "{unknown}");
    }

    #[test]
    fn the_kernel_reports_domains() {
        let nodes = tempfile::tempdir().unwrap();
        assert_eq!(Architecture::of_nodes(nodes.path()).unwrap().domains.len(), 1, "no report: one domain");
        let write = |name: &str, text: &str| {
            let path = nodes.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("online", "0-2\n");
        write("has_memory", "0-2\n");
        write("node0/cpulist", "0-3,8-11\n");
        write("node1/cpulist", "4-7\n");
        write("node2/cpulist", "\n");
        let found = Architecture::of_nodes(nodes.path()).unwrap();
        assert_eq!(found.domains[0].cpus, [0, 1, 2, 3, 8, 9, 10, 11]);
        assert_eq!((found.domains.len(), found.all_banks(), found.bank_weights.len()), (2, 64, 64));
        write("node1/cpulist", "four");
        let wrong = Architecture::of_nodes(nodes.path()).unwrap_err().to_string();
        assert!(wrong.contains("node1/cpulist") && wrong.contains("`four`"), "{wrong}");
    }

    #[test]
    fn this_machine_has_a_domain() {
        let found = Architecture::of_kernel().unwrap();
        assert!(!found.domains.is_empty() && found.bank_weights.len() == found.all_banks());
    }

    #[test]
    fn virtual_addresses_tell_banks_that_are_selected_inside_a_page() {
        let mut memory = Architecture::preset("pcm").unwrap();
        assert!(!memory.banks_are_known(), "8 KiB × 32 banks exceed a page of 4 KiB");
        memory.page_bytes = 2 << 20;
        assert!(memory.banks_are_known());
        (memory.page_bytes, memory.row_bytes) = (4096, LINE_BYTES);
        memory.banks = 64;
        assert!(memory.banks_are_known(), "lines over 64 banks: bits 6 to 11");
        memory.banks = 128;
        assert!(!memory.banks_are_known());
    }
}
