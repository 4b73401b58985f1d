//! Data in memory as partitions of one row each, grouped by bank and NUMA domain.
//!
//! A row's bank is its number modulo the number of banks, counted by address (ArchSampler, section on methodology). The
//! numbers are virtual; [`Architecture::banks_are_known`] says what that means. An element belongs to the row in which it
//! begins. The first and the last row may be shorter than the others, which the estimators take into account.

use super::file::Architecture;
use crate::Error;
use std::ops::Range;

/// In which NUMA domains the data lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// All in this domain.
    Domain(usize),
    /// In as many equal blocks as there are domains, as [`super::threads::place`] lays it.
    Blocks,
}

/// The rows of a slice.
#[derive(Debug, Clone)]
pub struct Partitions {
    /// Address of the first element.
    address: usize,
    /// Bytes of an element.
    size: usize,
    /// Elements.
    len: usize,
    row_bytes: usize,
    /// Banks of a domain.
    banks: usize,
    /// Rows of each domain.
    blocks: Vec<Range<u64>>,
}

impl Partitions {
    /// Splits data into rows.
    ///
    /// # Errors
    /// There is no data, an element is larger than a row or has no size, or the architecture has no such domain.
    pub fn of<T>(data: &[T], memory: &Architecture, placement: Placement) -> Result<Partitions, Error> {
        let size = size_of::<T>();
        if data.is_empty() || size == 0 {
            return Err(Error::Question("there is no data to sample; give a slice that holds some".into()));
        }
        if size > memory.row_bytes {
            let row = memory.row_bytes;
            return Err(Error::Question(format!(
                "an element has {size} bytes, a row of the memory {row}; sample smaller elements, or set `row_bytes`"
            )));
        }
        Partitions::at(data.as_ptr().addr(), size, data.len(), memory, placement)
    }

    /// The rows of `len` elements of `size` bytes from an address on: for data that is only simulated.
    ///
    /// # Errors
    /// The architecture has no such domain.
    pub fn at(
        address: usize,
        size: usize,
        len: usize,
        memory: &Architecture,
        placement: Placement,
    ) -> Result<Partitions, Error> {
        let domains = memory.domains.len();
        let row_bytes = memory.row_bytes;
        let rows = ((address + (len - 1) * size) / row_bytes - address / row_bytes + 1) as u64;
        let blocks = match placement {
            Placement::Domain(domain) if domain >= domains => {
                return Err(Error::Question(format!(
                    "the data is in NUMA domain {domain}, the architecture has {domains}; add `[[domain]]` to its file"
                )));
            }
            Placement::Domain(at) => (0..domains).map(|domain| if domain == at { 0..rows } else { 0..0 }).collect(),
            Placement::Blocks => blocks(rows, domains, memory),
        };
        Ok(Partitions { address, size, len, row_bytes, banks: memory.banks, blocks })
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.blocks.iter().map(|block| block.end - block.start).sum()
    }

    /// Number of banks of all domains.
    pub fn banks(&self) -> usize {
        self.banks * self.blocks.len()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Elements of a row, as indexes into the data.
    pub fn range(&self, row: u64) -> Range<usize> {
        self.start(row)..self.start(row + 1)
    }

    fn start(&self, row: u64) -> usize {
        let begins = (self.address / self.row_bytes + row as usize) * self.row_bytes;
        begins.saturating_sub(self.address).div_ceil(self.size).min(self.len)
    }

    /// NUMA domain of a row.
    pub fn domain(&self, row: u64) -> usize {
        self.blocks.iter().position(|block| block.contains(&row)).expect("the row is of this data")
    }

    /// Bank of a row; banks are counted through all domains.
    pub fn bank(&self, row: u64) -> usize {
        self.domain(row) * self.banks + self.number(row) as usize % self.banks
    }

    /// The row's number in the memory.
    pub fn number(&self, row: u64) -> u64 {
        (self.address / self.row_bytes) as u64 + row
    }

    /// Rows that lie in a bank.
    pub fn rows_of(&self, bank: usize) -> u64 {
        let block = &self.blocks[bank / self.banks];
        (block.end.saturating_sub(self.first_of(bank))).div_ceil(self.banks as u64)
    }

    /// Row `index` of those that lie in a bank.
    pub fn row_of(&self, bank: usize, index: u64) -> u64 {
        assert!(index < self.rows_of(bank), "bank {bank} has no row {index}");
        self.first_of(bank) + index * self.banks as u64
    }

    /// Elements that lie in a bank.
    pub fn elements_of(&self, bank: usize) -> u64 {
        (0..self.rows_of(bank)).map(|index| self.range(self.row_of(bank, index)).len() as u64).sum()
    }

    /// Elements of all rows.
    pub fn elements(&self) -> u64 {
        self.len as u64
    }

    /// Elements of a domain, as indexes into the data.
    pub(super) fn block(&self, domain: usize) -> Range<usize> {
        let block = &self.blocks[domain];
        self.start(block.start)..self.start(block.end)
    }

    fn first_of(&self, bank: usize) -> u64 {
        let block = &self.blocks[bank / self.banks];
        let banks = self.banks as u64;
        let offset = (bank as u64 % banks + banks - self.number(block.start) % banks) % banks;
        block.start + offset
    }
}

/// Rows of each domain: equal blocks, cut where pages begin.
fn blocks(rows: u64, domains: usize, memory: &Architecture) -> Vec<Range<u64>> {
    let page_rows = (memory.page_bytes / memory.row_bytes).max(1) as u64;
    let cut = |domain: usize| {
        if domain == domains { rows } else { rows * domain as u64 / domains as u64 / page_rows * page_rows }
    };
    (0..domains).map(|domain| cut(domain)..cut(domain + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::file::Domain;
    use proptest::prelude::*;

    fn memory(banks: usize, row_bytes: usize, domains: usize) -> Architecture {
        let mut memory = Architecture::preset("pcm").unwrap();
        (memory.banks, memory.row_bytes) = (banks, row_bytes);
        memory.domains = vec![Domain { cpus: vec![] }; domains];
        memory.bank_weights = vec![1.0; memory.all_banks()];
        memory
    }

    #[test]
    fn rows_go_round_the_banks_by_address() {
        // An address in the middle of row 2: the first row has 24 bytes of elements, the last one 8.
        let rows =
            Partitions::at(2 * 64 + 40, 4, (24 + 3 * 64 + 8) / 4, &memory(4, 64, 1), Placement::Domain(0)).unwrap();
        assert_eq!(rows.rows(), 5);
        assert_eq!((0..5).map(|row| rows.bank(row)).collect::<Vec<_>>(), [2, 3, 0, 1, 2]);
        assert_eq!([rows.range(0), rows.range(1), rows.range(4)], [0..6, 6..22, 54..56]);
        assert_eq!((rows.rows_of(2), rows.row_of(2, 1), rows.elements_of(2)), (2, 4, 8));
    }

    #[test]
    fn an_element_belongs_to_the_row_in_which_it_begins() {
        let rows = Partitions::at(0, 24, 8, &memory(2, 64, 1), Placement::Domain(0)).unwrap();
        assert_eq!((0..rows.rows()).map(|row| rows.range(row)).collect::<Vec<_>>(), [0..3, 3..6, 6..8]);
    }

    proptest! {
        #[test]
        fn every_element_is_in_one_row_and_every_row_in_one_bank(
            address in 0usize..10_000, size in 1usize..64, len in 1usize..5000, banks in 1usize..9, domains in 1usize..4,
        ) {
            let memory = memory(banks, 64, domains);
            let rows = Partitions::at(address, size, len, &memory, Placement::Blocks).unwrap();
            let mut next = 0;
            for row in 0..rows.rows() {
                prop_assert_eq!(rows.range(row).start, next);
                next = rows.range(row).end;
            }
            prop_assert_eq!(next, len);
            let mut of_banks = Vec::new();
            for bank in 0..rows.banks() {
                for index in 0..rows.rows_of(bank) {
                    let row = rows.row_of(bank, index);
                    prop_assert_eq!(rows.bank(row), bank);
                    of_banks.push(row);
                }
            }
            of_banks.sort_unstable();
            prop_assert_eq!(of_banks, (0..rows.rows()).collect::<Vec<_>>());
            prop_assert_eq!((0..rows.banks()).map(|bank| rows.elements_of(bank)).sum::<u64>(), len as u64);
        }
    }

    #[test]
    fn what_cannot_be_split_is_refused() {
        let memory = memory(4, 64, 1);
        let refused = |error: Result<Partitions, Error>| error.unwrap_err().to_string();
        assert!(refused(Partitions::of::<u8>(&[], &memory, Placement::Blocks)).contains("no data"));
        assert!(refused(Partitions::of(&[[0u8; 65]], &memory, Placement::Blocks)).contains("65 bytes"));
        assert!(refused(Partitions::of(&[1u8], &memory, Placement::Domain(1))).contains("NUMA domain 1"));
    }
}
