//! Decompresses bzip2: Huffman codes over move-to-front ranks and runs, the Burrows-Wheeler transform, and runs of equal
//! bytes. Streams may follow each other, as parallel compressors write them; all checksums are checked.
//!
//! It is here because no crate does this without C or a licence of its own: `bzip2-rs` ends at the first stream.

use std::io::{self, BufRead, Read};

/// Bytes of a block at level 1.
const LEVEL_BYTES: usize = 100_000;
const BLOCK: u64 = 0x3141_5926_5359;
const END: u64 = 0x1772_4538_5090;
/// Symbols after which the next selector chooses a table.
const GROUP: usize = 50;
/// The longest code, in bits.
const CODE_MAX: u32 = 20;
/// Symbols of runs: binary digits of the length, the lowest first.
const RUN_A: u16 = 0;
const RUN_B: u16 = 1;

const SHORT: &str = "the file ends within a stream";

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("bzip2: {what}"))
}

/// Reads bits, the highest of a byte first.
#[derive(Debug)]
struct Bits<R> {
    input: R,
    buffer: u64,
    count: u32,
}

impl<R: BufRead> Bits<R> {
    /// The next byte of the input, if there is one.
    fn byte(&mut self) -> io::Result<Option<u8>> {
        let byte = self.input.fill_buf()?.first().copied();
        self.input.consume(usize::from(byte.is_some()));
        Ok(byte)
    }

    /// The next bits, at most 32.
    fn take(&mut self, bits: u32) -> io::Result<u32> {
        while self.count < bits {
            let byte = self.byte()?.ok_or_else(|| invalid(SHORT))?;
            self.buffer = self.buffer << 8 | u64::from(byte);
            self.count += 8;
        }
        self.count -= bits;
        Ok((self.buffer >> self.count & ((1 << bits) - 1)) as u32)
    }

    fn flag(&mut self) -> io::Result<bool> {
        Ok(self.take(1)? == 1)
    }

    /// Leaves out bits up to the next byte.
    fn align(&mut self) {
        self.count -= self.count % 8;
    }

    fn magic(&mut self) -> io::Result<u64> {
        Ok(u64::from(self.take(24)?) << 24 | u64::from(self.take(24)?))
    }
}

/// A canonical Huffman code.
#[derive(Debug)]
struct Code {
    /// For each length the first code, and how many symbols have shorter ones.
    first: [(u32, usize); CODE_MAX as usize + 2],
    /// Symbols in the order of their codes.
    symbols: Vec<u16>,
}

impl Code {
    fn new(lengths: &[u32]) -> Code {
        let (mut first, mut symbols, mut code) = ([(0, 0); CODE_MAX as usize + 2], Vec::new(), 0);
        for length in 1..=CODE_MAX {
            first[length as usize] = (code, symbols.len());
            symbols.extend((0u16..).zip(lengths).filter(|(_, l)| **l == length).map(|(symbol, _)| symbol));
            code = (code + (symbols.len() - first[length as usize].1) as u32) << 1;
        }
        first[CODE_MAX as usize + 1] = (code, symbols.len());
        Code { first, symbols }
    }

    fn read<R: BufRead>(&self, bits: &mut Bits<R>) -> io::Result<u16> {
        let mut code = 0;
        for length in 1..=CODE_MAX as usize {
            code = code << 1 | bits.take(1)?;
            let ((first, before), after) = (self.first[length], self.first[length + 1].1);
            if code >= first && ((code - first) as usize) < after - before {
                return Ok(self.symbols[before + (code - first) as usize]);
            }
        }
        Err(invalid("a code that stands for nothing"))
    }
}

/// CRC-32, the highest bit first.
fn crc(crc: u32, byte: u8) -> u32 {
    (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| crc << 1 ^ if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 })
}

/// A decompressed file.
#[derive(Debug)]
pub struct Bzip2<R> {
    bits: Bits<R>,
    crcs: Vec<u32>,
    /// Level of the stream; 0: outside of one.
    level: usize,
    /// The most recent block: for each byte, in sorted order, where the next one is, and the byte in the low 8 bits.
    next: Vec<u32>,
    at: u32,
    /// Bytes of `next` that are left.
    left: usize,
    last: u8,
    /// How often the last byte has come; after four times the next byte is a count.
    same: u8,
    repeat: u8,
    /// Whether the block's checksum is still to be checked.
    is_in_block: bool,
    crc: u32,
    crc_expected: u32,
    crc_stream: u32,
}

impl<R: BufRead> Bzip2<R> {
    /// Decompresses what a reader has.
    pub fn new(input: R) -> Self {
        Bzip2 {
            bits: Bits { input, buffer: 0, count: 0 },
            crcs: (0..=255).map(|byte| crc(0, byte)).collect(),
            level: 0,
            next: Vec::new(),
            at: 0,
            left: 0,
            last: 0,
            same: 0,
            repeat: 0,
            is_in_block: false,
            crc: 0,
            crc_expected: 0,
            crc_stream: 0,
        }
    }

    /// Begins the next block, of the next stream if one has ended; `false`: there is none.
    fn advance(&mut self) -> io::Result<bool> {
        loop {
            if self.level == 0 && !self.begin_stream()? {
                return Ok(false);
            }
            match self.bits.magic()? {
                BLOCK => {
                    self.begin_block()?;
                    return Ok(true);
                }
                END if self.bits.take(32)? == self.crc_stream => {
                    self.bits.align();
                    self.level = 0;
                }
                END => return Err(invalid("the checksum of the stream is wrong")),
                _ => return Err(invalid("neither a block nor the end")),
            }
        }
    }

    fn begin_stream(&mut self) -> io::Result<bool> {
        // At the start of a stream all bits of the last byte were used.
        let Some(first) = self.bits.byte()? else { return Ok(false) };
        match (u32::from(first) << 24 | self.bits.take(24)?).to_be_bytes() {
            [b'B', b'Z', b'h', level @ b'1'..=b'9'] => self.level = usize::from(level - b'0'),
            _ => return Err(invalid("something that is no stream")),
        }
        self.crc_stream = 0;
        Ok(true)
    }

    fn begin_block(&mut self) -> io::Result<()> {
        (self.crc_expected, self.crc) = (self.bits.take(32)?, u32::MAX);
        (self.same, self.repeat) = (0, 0);
        if self.bits.flag()? {
            return Err(invalid("a randomised block, which no compressor has written since 1997"));
        }
        let origin = self.bits.take(24)?;
        let used = self.used()?;
        let (codes, selectors) = self.codes(used.len() + 2)?;
        self.read_symbols(used, &codes, &selectors)?;
        self.invert(origin)
    }

    /// The bytes that occur in the block.
    fn used(&mut self) -> io::Result<Vec<u8>> {
        let (ranges, mut used) = (self.bits.take(16)?, Vec::new());
        for range in (0..16u8).filter(|range| ranges >> (15 - range) & 1 == 1) {
            let bytes = self.bits.take(16)?;
            used.extend((0..16).filter(|byte| bytes >> (15 - byte) & 1 == 1).map(|byte| range * 16 + byte));
        }
        if used.is_empty() { Err(invalid("a block of no bytes")) } else { Ok(used) }
    }

    /// The codes, and which is used for each group of symbols.
    fn codes(&mut self, symbols: usize) -> io::Result<(Vec<Code>, Vec<usize>)> {
        let (count, groups) = (self.bits.take(3)? as usize, self.bits.take(15)?);
        if !(2..=6).contains(&count) || groups == 0 {
            return Err(invalid("a wrong number of codes"));
        }
        let (mut codes, mut selectors) = (Vec::new(), Vec::new());
        let mut recent: Vec<usize> = (0..count).collect();
        for _ in 0..groups {
            let mut rank = 0;
            while self.bits.flag()? {
                rank += 1;
                if rank == count {
                    return Err(invalid("a code that is not there"));
                }
            }
            recent[..=rank].rotate_right(1);
            selectors.push(recent[0]);
        }
        for _ in 0..count {
            let (mut length, mut lengths) = (self.bits.take(5)?, Vec::new());
            for _ in 0..symbols {
                while (1..=CODE_MAX).contains(&length) && self.bits.flag()? {
                    length = if self.bits.flag()? { length - 1 } else { length + 1 };
                }
                if !(1..=CODE_MAX).contains(&length) {
                    return Err(invalid("a code of a wrong length"));
                }
                lengths.push(length);
            }
            codes.push(Code::new(&lengths));
        }
        Ok((codes, selectors))
    }

    /// Reads the bytes of a block, in sorted order.
    fn read_symbols(&mut self, mut recent: Vec<u8>, codes: &[Code], selectors: &[usize]) -> io::Result<()> {
        let (most, end) = (self.level * LEVEL_BYTES, recent.len() as u16 + 1);
        let (mut run, mut digit) = (0, 1);
        self.next.clear();
        for group in selectors {
            for _ in 0..GROUP {
                let symbol = codes[*group].read(&mut self.bits)?;
                if symbol == RUN_A || symbol == RUN_B {
                    run += digit << symbol;
                    digit <<= 1;
                    if run > most {
                        return Err(invalid("a block that is too long"));
                    }
                    continue;
                }
                self.next.extend(std::iter::repeat_n(u32::from(recent[0]), run));
                (run, digit) = (0, 1);
                if symbol == end {
                    return if self.next.len() <= most { Ok(()) } else { Err(invalid("a block that is too long")) };
                }
                recent[..usize::from(symbol)].rotate_right(1);
                self.next.push(u32::from(recent[0]));
                if self.next.len() > most {
                    return Err(invalid("a block that is too long"));
                }
            }
        }
        Err(invalid("a block without an end"))
    }

    /// Inverts the Burrows-Wheeler transform: links each byte to the next.
    fn invert(&mut self, origin: u32) -> io::Result<()> {
        let mut starts = [0u32; 256];
        self.next.iter().for_each(|byte| starts[*byte as usize] += 1);
        let mut sum = 0;
        for start in &mut starts {
            sum += std::mem::replace(start, sum);
        }
        for i in 0..self.next.len() {
            let start = &mut starts[(self.next[i] & 0xff) as usize];
            self.next[*start as usize] |= (i as u32) << 8;
            *start += 1;
        }
        self.at = self.next.get(origin as usize).ok_or_else(|| invalid("a block that begins nowhere"))? >> 8;
        (self.left, self.is_in_block) = (self.next.len(), true);
        Ok(())
    }

    /// The next byte of the block.
    fn unpack(&mut self) -> Option<u8> {
        if self.repeat == 0 {
            let mut byte = self.take()?;
            if self.same == 4 {
                (self.same, self.repeat) = (0, byte);
                if byte == 0 {
                    byte = self.take()?;
                } else {
                    self.repeat -= 1;
                    return Some(self.last);
                }
            }
            self.same = if self.same > 0 && byte == self.last { self.same + 1 } else { 1 };
            self.last = byte;
        } else {
            self.repeat -= 1;
        }
        Some(self.last)
    }

    fn take(&mut self) -> Option<u8> {
        self.left = self.left.checked_sub(1)?;
        let entry = self.next[self.at as usize];
        self.at = entry >> 8;
        Some(entry as u8)
    }

    /// Checks the block that has ended.
    fn end_block(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_in_block) {
            return Ok(());
        }
        if !self.crc != self.crc_expected {
            return Err(invalid("the checksum of a block is wrong"));
        }
        self.crc_stream = self.crc_stream.rotate_left(1) ^ self.crc_expected;
        Ok(())
    }
}

impl<R: BufRead> Read for Bzip2<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            if let Some(byte) = self.unpack() {
                self.crc = self.crc << 8 ^ self.crcs[(self.crc >> 24) as usize ^ usize::from(byte)];
                buffer[read] = byte;
                read += 1;
                continue;
            }
            self.end_block()?;
            if read > 0 || !self.advance()? {
                break;
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three streams: a trace, runs around the lengths at which their form changes, and two bytes in turn for three blocks.
    const STREAMS: &[u8] = include_bytes!("../../tests/streams.bz2");

    fn decompress(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        Bzip2::new(bytes).read_to_end(&mut text).map(|_| text)
    }

    #[test]
    fn streams_that_follow_each_other_are_one_text() {
        let line = |i: u32| {
            format!("0,{},512,{},{}.0\n", i * 7919 % 97 * 8, if i.is_multiple_of(3) { 'W' } else { 'R' }, i / 100)
        };
        let mut expected: Vec<u8> = (0..300).flat_map(|i| line(i).into_bytes()).collect();
        for (byte, count) in [(b'x', 1000), (b'a', 4), (b'b', 5), (b'y', 258), (b'z', 259), (b'y', 260), (b'\n', 1)] {
            expected.extend(std::iter::repeat_n(byte, count));
        }
        expected.extend(b"ab".repeat(125_000));
        assert!(decompress(STREAMS).unwrap() == expected, "the text is another");
        let (mut source, mut buffer, mut pieces) = (Bzip2::new(STREAMS), [0; 7], Vec::new());
        while let read @ 1.. = source.read(&mut buffer).unwrap() {
            pieces.extend_from_slice(&buffer[..read]);
        }
        assert!(pieces == expected, "the text is another in small pieces");
    }

    #[test]
    fn a_file_that_is_cut_or_changed_is_an_error() {
        let starts: Vec<usize> = (0..STREAMS.len()).filter(|at| STREAMS[*at..].starts_with(b"BZh")).collect();
        assert_eq!(starts.len(), 3);
        for end in (0..STREAMS.len()).filter(|end| !starts.contains(end)) {
            assert!(decompress(&STREAMS[..end]).is_err(), "cut at {end}");
        }
        let (expected, mut harmless) = (decompress(STREAMS).unwrap(), 0);
        for bit in 0..STREAMS.len() * 8 {
            let mut changed = STREAMS.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            // Levels, codes of symbols that do not come and the padding of a stream may change without an effect.
            if let Ok(text) = decompress(&changed) {
                assert!(text == expected, "bit {bit}");
                harmless += 1;
            }
        }
        assert!(harmless * 20 < STREAMS.len() * 8, "{harmless} changes were not noticed");
    }
}
