//! Files of traces, decompressed as they are read.

use crate::args::{LineArgs, ReadingArgs};
use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Stdin};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tessera_flash::trace::{Bzip2, Reader, TraceError};

/// An open trace.
pub type Trace = Reader<Box<dyn Read>>;

/// What was read from stdin, for commands that read a trace more than once: a file without a name.
static SPOOL: OnceLock<File> = OnceLock::new();

/// Where a trace comes from.
enum Source {
    File(File),
    Stdin(Stdin),
    /// [`SPOOL`], from a byte on.
    Spool(&'static File, u64),
}

impl Source {
    fn open(path: &Path) -> Outcome<Source> {
        if is_stdin(path) {
            return Ok(SPOOL.get().map_or_else(|| Source::Stdin(io::stdin()), |file| Source::Spool(file, 0)));
        }
        let file = File::open(path).at(path)?;
        if file.metadata().at(path)?.is_dir() {
            bail!(Exit::Usage, "{}: a directory is no trace; name a file", path.display());
        }
        Ok(Source::File(file))
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::File(file) => file.read(buffer),
            Source::Stdin(stdin) => stdin.read(buffer),
            Source::Spool(file, at) => {
                let read = file.read_at(buffer, *at)?;
                *at += read as u64;
                Ok(read)
            }
        }
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Checks that stdin is not named twice.
///
/// # Errors
/// It is.
pub fn check(args: &ReadingArgs) -> Outcome {
    if args.traces.iter().filter(|path| is_stdin(path)).count() > 1 {
        bail!(Exit::Usage, "stdin (`-`) is named more than once, and can be read once; name it once");
    }
    Ok(())
}

/// Keeps what stdin has in a temporary file, as it is, if stdin is one of the traces: each can then be read again.
///
/// # Errors
/// It cannot be read or kept, or another trace cannot be read again.
pub fn spool(args: &ReadingArgs) -> Outcome {
    for path in args.traces.iter().filter(|path| !is_stdin(path)) {
        let found = std::fs::metadata(path).at(path)?;
        if !found.is_file() && !found.is_dir() {
            bail!(
                Exit::Usage,
                "{}: no regular file, and a replay reads its trace more than once; name it `-` and let the shell pass it to stdin",
                path.display()
            );
        }
    }
    if args.traces.iter().any(|path| is_stdin(path)) {
        let dir = std::env::temp_dir();
        let failed =
            |e| failure!(Exit::Failed, "stdin cannot be kept in {}: {e}; set TMPDIR, or name a file", dir.display());
        let path = dir.join(format!("tessera-trace-{}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        std::fs::remove_file(&path).map_err(failed)?;
        io::copy(&mut io::stdin(), &mut &file).map_err(failed)?;
        _ = SPOOL.set(file);
    }
    Ok(())
}

/// Bytes of a trace that can be read more than once.
///
/// # Errors
/// The file is not there.
pub fn bytes(path: &Path) -> Outcome<u64> {
    let metadata = match SPOOL.get().filter(|_| is_stdin(path)) {
        Some(spool) => spool.metadata(),
        None => std::fs::metadata(path),
    };
    Ok(metadata.at(path)?.len())
}

/// Counts the bytes that are read.
struct Counted {
    source: Source,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A file of zstd's, from the start of a frame on: the first bytes of the frame were read to look at them.
struct Peeked<R> {
    head: Vec<u8>,
    rest: R,
}

impl<R: Read> Peeked<R> {
    /// Moves on to a frame of data, past skippable ones (RFC 8878, section 3.1.2); false at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            self.head.clear();
            (&mut self.rest).take(8).read_to_end(&mut self.head)?;
            match self.head[..] {
                [0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d] => {
                    let len = u64::from(u32::from_le_bytes([a, b, c, d]));
                    if io::copy(&mut (&mut self.rest).take(len), &mut io::sink())? < len {
                        return Err(damaged("it ends within a frame"));
                    }
                }
                _ => return Ok(!self.head.is_empty()),
            }
        }
    }
}

impl<R: Read> Read for Peeked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.head.is_empty() {
            return self.rest.read(buffer);
        }
        let taken = (&self.head[..]).read(buffer)?;
        self.head.drain(..taken);
        Ok(taken)
    }
}

/// zstd's frames, one after the other; the decoder reads one.
struct Frames<R: Read> {
    decoder: Option<StreamingDecoder<Peeked<R>, ruzstd::decoding::FrameDecoder>>,
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {what}; restore the file"))
}

impl<R: Read> Frames<R> {
    fn new(rest: R) -> io::Result<Self> {
        let mut frames = Frames { decoder: None };
        frames.go_on(Peeked { head: Vec::new(), rest })?;
        Ok(frames)
    }

    fn go_on(&mut self, mut input: Peeked<R>) -> io::Result<()> {
        if input.next_frame()? {
            let decoder = StreamingDecoder::new(input);
            self.decoder = Some(decoder.map_err(|_| damaged("the start of a frame is damaged or cut off"))?);
        }
        Ok(())
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let read = decoder.read(buffer).map_err(|_| damaged("a frame is damaged or cut off"))?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let (rest, frame) = self.decoder.take().map(StreamingDecoder::into_parts).expect("it was there");
            let expected = frame.get_checksum_from_data();
            if expected.is_some() && expected != frame.get_calculated_checksum() {
                return Err(damaged("the checksum of a frame is wrong"));
            }
            self.go_on(rest)?;
        }
        Ok(0)
    }
}

/// Opens a trace, `-` for stdin; `read` counts the bytes of the file.
///
/// # Errors
/// It cannot be opened, its compression is wrong, or its format is not known.
pub fn open(path: &Path, lines: LineArgs, read: Arc<AtomicU64>) -> Outcome<Trace> {
    let mut input = BufReader::new(Counted { source: Source::open(path)?, read });
    let head = input.fill_buf().at(path)?;
    let mut is_packed = true;
    let text: Box<dyn Read> = match head {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(input)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Box::new(Frames::new(input).map_err(|e| Failure::io(path, &e))?)
        }
        [b'B', b'Z', b'h', ..] => Box::new(Bzip2::new(input)),
        _ => {
            is_packed = false;
            Box::new(input)
        }
    };
    Reader::with_checksum(text, lines.format, lines.skip_bad, is_packed).map_err(|e| wrong(path, &e))
}

/// The failure of a trace that cannot be read.
pub fn wrong(path: &Path, error: &TraceError) -> Failure {
    let exit = match error {
        TraceError::Io { .. } => Exit::Failed,
        _ => Exit::Usage,
    };
    let is_damaged = matches!(error, TraceError::Io { error, .. }
        if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof));
    let way_out = match is_damaged && !error.to_string().ends_with("restore the file") {
        true => "; the compressed file is damaged or cut off: restore the file",
        false => "",
    };
    failure!(exit, "{}: {error}{way_out}", path.display())
}
