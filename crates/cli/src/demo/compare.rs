//! A sink that compares the written bytes with the expected ones.

use std::io::{self, Read, Write};

/// Compares bytes and keeps none.
pub struct Compare<R> {
    expected: R,
    buffer: Vec<u8>,
    compared: u64,
    different: u64,
}

impl<R: Read> Compare<R> {
    /// Compares with `expected`.
    pub fn new(expected: R) -> Self {
        Compare { expected, buffer: Vec::new(), compared: 0, different: 0 }
    }

    /// (bytes compared, bytes that differ). Missing and surplus bytes count as different.
    ///
    /// # Errors
    /// The expected bytes could not be read.
    pub fn finish(mut self) -> io::Result<(u64, u64)> {
        let missing = io::copy(&mut self.expected, &mut io::sink())?;
        Ok((self.compared, self.different + missing))
    }
}

impl<R: Read> Write for Compare<R> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.clear();
        let filled = self.expected.by_ref().take(bytes.len() as u64).read_to_end(&mut self.buffer)?;
        self.different += self.buffer.iter().zip(bytes).filter(|(a, b)| a != b).count() as u64;
        self.different += (bytes.len() - filled) as u64;
        self.compared += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(expected: &[u8], got: &[&[u8]]) -> (u64, u64) {
        let mut compare = Compare::new(expected);
        got.iter().for_each(|piece| compare.write_all(piece).unwrap());
        compare.finish().unwrap()
    }

    #[test]
    fn every_kind_of_difference_counts() {
        assert_eq!(differences(b"abcdef", &[b"ab", b"cdef"]), (6, 0));
        assert_eq!(differences(b"abcdef", &[b"aXc", b"dYf"]), (6, 2));
        assert_eq!(differences(b"abcdef", &[b"abc"]), (3, 3), "missing bytes");
        assert_eq!(differences(b"abc", &[b"abcde"]), (5, 2), "bytes too many");
        assert_eq!(differences(b"", &[]), (0, 0));
    }
}
