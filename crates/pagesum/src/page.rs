//! The sum of a page: XXH3 (64 bits, <https://github.com/Cyan4973/xxHash>) of all its other bytes, seeded with the number of
//! the page, so that a page that was written to the wrong place has a wrong sum. It stands in the last 8 bytes of the page,
//! little-endian. SQLite leaves them alone: byte 20 of the file says that 8 bytes of each page are reserved.

use std::io;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Bytes at the end of a page that hold its sum.
pub const SUM_BYTES: usize = 8;
/// The page that SQLite's locks lie in (at 1 GiB); it is never written.
pub const LOCK_PAGE: u32 = (0x4000_0000 / PAGE_BYTES as u32) + 1;

/// What the start of a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A database with sums.
    Summed,
    /// A database without sums, or with pages of another size.
    Unsummed,
    /// No SQLite database.
    Foreign,
}

/// The format of a file that starts with these bytes (100 suffice).
pub fn format_of(start: &[u8]) -> Format {
    match start {
        head if head.len() < 100 || !head.starts_with(b"SQLite format 3\0") => Format::Foreign,
        head if head[16..18] == (PAGE_BYTES as u16).to_be_bytes() && head[20] == SUM_BYTES as u8 => Format::Summed,
        _ => Format::Unsummed,
    }
}

/// The number of the page at an offset in the file, from 1.
pub fn number_at(offset: u64) -> u32 {
    u32::try_from(offset / PAGE_BYTES as u64 + 1).unwrap_or(u32::MAX)
}

fn sum(page: &[u8], number: u32) -> [u8; SUM_BYTES] {
    xxh3_64_with_seed(&page[..PAGE_BYTES - SUM_BYTES], u64::from(number)).to_le_bytes()
}

/// Whether a page holds its sum.
pub fn is_sound(page: &[u8], number: u32) -> bool {
    number == LOCK_PAGE || page[PAGE_BYTES - SUM_BYTES..] == sum(page, number)
}

/// Writes the sum into a page.
pub fn seal(page: &mut [u8], number: u32) {
    let sum = sum(page, number);
    page[PAGE_BYTES - SUM_BYTES..].copy_from_slice(&sum);
}

/// Writes the sums into all pages of a database image.
pub fn seal_image(image: &mut [u8]) {
    (1..).zip(image.chunks_exact_mut(PAGE_BYTES)).for_each(|(number, page)| seal(page, number));
}

/// Checks the sums of all pages of a database image.
///
/// # Errors
/// The image is no database with sums, ends within a page, or has a damaged page.
pub fn check_image(image: &[u8]) -> io::Result<()> {
    let damaged = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
    if format_of(image) != Format::Summed || !image.len().is_multiple_of(PAGE_BYTES) {
        return damaged(format!("{} bytes are no database image with page checksums", image.len()));
    }
    match (1..).zip(image.chunks_exact(PAGE_BYTES)).find(|(number, page)| !is_sound(page, *number)) {
        Some((number, _)) => damaged(format!("page {number} of the database image is damaged")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_wrong_place_shows() {
        let mut page: Vec<u8> = (0..PAGE_BYTES).map(|i| (i % 251) as u8).collect();
        seal(&mut page, 7);
        assert!(is_sound(&page, 7) && !is_sound(&page, 8));
        for bit in 0..PAGE_BYTES * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_sound(&page, 7), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(!is_sound(&[0; PAGE_BYTES], 7), "a page that was never written");
    }

    /// Stored databases depend on it.
    #[test]
    fn the_sum_stays_what_it_is() {
        assert_eq!(sum(&[7; PAGE_BYTES], 1), 0x25c4_4a89_a684_9130_u64.to_le_bytes());
    }
}
