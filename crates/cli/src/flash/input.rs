//! Files of traces, decompressed as they are read.

use crate::args::ReadingArgs;
use crate::exit::{At, Exit, Failure, Outcome, failure};
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_flash::trace::{Reader, TraceError};

/// An open trace.
pub type Trace = Reader<Box<dyn Read>>;

/// Counts the bytes that are read from a file.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// zstd's frames, one after the other; the decoder reads one.
struct Frames<R: Read> {
    decoder: Option<StreamingDecoder<BufReader<R>, ruzstd::decoding::FrameDecoder>>,
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let read = decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let mut rest = self.decoder.take().map(StreamingDecoder::into_inner).expect("it was there");
            if !rest.fill_buf()?.is_empty() {
                self.decoder = Some(StreamingDecoder::new(rest).map_err(io::Error::other)?);
            }
        }
        Ok(0)
    }
}

/// Opens a trace; `read` counts the bytes of the file.
///
/// # Errors
/// It cannot be opened, its compression is not known, or its format is not.
pub fn open(path: &Path, args: &ReadingArgs, read: Arc<AtomicU64>) -> Outcome<Trace> {
    let file = File::open(path).at(path)?;
    if file.metadata().at(path)?.is_dir() {
        return Err(failure!(Exit::Usage, "{}: a directory is no trace; name a file", path.display()));
    }
    let mut input = BufReader::new(Counted { file, read });
    let head = input.fill_buf().at(path)?;
    let text: Box<dyn Read> = match head {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(input)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = StreamingDecoder::new(input).map_err(|e| Failure::io(path, &io::Error::other(e)))?;
            Box::new(Frames { decoder: Some(decoder) })
        }
        [b'B', b'Z', b'h', ..] => {
            let message = "bzip2 is not read directly; decompress it with `bzip2 -dk` first";
            return Err(failure!(Exit::Usage, "{}: {message}", path.display()));
        }
        _ => Box::new(input),
    };
    Reader::new(text, args.format, args.skip_bad).map_err(|e| wrong(path, &e))
}

/// The failure of a trace that cannot be read.
pub fn wrong(path: &Path, error: &TraceError) -> Failure {
    let exit = match error {
        TraceError::Io { .. } => Exit::Failed,
        TraceError::Field { .. } | TraceError::Unknown { .. } => Exit::Usage,
    };
    failure!(exit, "{}: {error}", path.display())
}
