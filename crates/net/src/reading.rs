//! What a connection's thread does: it reads frames, and while it waits for the peer it writes what other threads left in
//! the outbox, expires calls, and ends connections that do not move.

use crate::buffer::BufferPool;
use crate::connection::{Connection, End, Service};
use crate::keepalive::SILENCE;
use crate::limits::{GREETING_BYTES, Limits, STALL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read};
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tessera_wire::frame::{FLAG_REPLY, Frame, FrameError, FrameHeader, HEADER_BYTES, START_BYTES};
use tessera_wire::{Code, Error};

/// Size of the buffer that reads many small frames at once; at most this much of a payload is copied twice.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// Payloads of at least this many bytes are checksummed while they arrive.
const LONG_PAYLOAD_BYTES: u32 = 32 << 10;
/// Bytes received before each checksum: few enough to be still in the cache.
const STEP_BYTES: usize = 128 << 10;
/// A thread that waits looks at its deadlines this often.
const TICK: Duration = Duration::from_millis(100);
/// The same on a connection on which nothing is due. A call that begins meanwhile is looked after from its end on: it is shorter than
/// [`SILENCE`], and a call with less time wakes the thread.
pub(crate) const DOZE: Duration = Duration::from_secs(1);
const _: () = assert!(DOZE.as_millis() < SILENCE.as_millis());
/// How long a refused peer may take to read why.
const LINGER: Duration = Duration::from_secs(1);

/// Why a connection's thread ends it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer's bytes are not a frame.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// The peer refused the connection.
    #[error("{0}")]
    Refused(Error),
    /// This side drops the connection.
    #[error("{0}")]
    Dropped(Error),
}

/// Reads frames from a stream.
pub(crate) struct Reader<'a> {
    connection: &'a Connection,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The last read took all there was: the next one would find nothing.
    drained: bool,
    opened: Instant,
    /// When the peer last sent something.
    heard: Instant,
    /// When it was last looked whether the peer sent something.
    looked: Instant,
    /// When the oldest call began that has expired since then, without its answer.
    expired: Option<Instant>,
    swept: Instant,
}

impl<'a> Reader<'a> {
    pub fn new(connection: &'a Connection) -> Self {
        let now = Instant::now();
        let buffer = vec![0; READ_BUFFER_BYTES];
        let (opened, heard, looked, swept) = (now, now, now, now);
        Reader { connection, buffer, start: 0, end: 0, drained: true, opened, heard, looked, expired: None, swept }
    }

    /// The next frame; `None` when the peer has closed between frames.
    ///
    /// # Errors
    /// The connection is to end.
    pub fn frame(&mut self, service: &dyn Service, pool: &BufferPool) -> Result<Option<Frame>, ReadError> {
        self.connection.outbox.flush(&self.connection.stream)?;
        while !self.connection.outbox.may_read() {
            if let Some(admissions) = &self.connection.admissions {
                admissions.shed();
            }
            self.wait(false)?;
        }
        let Some(header) = self.header()? else { return Ok(None) };
        let mut body = vec![0; header.body_len as usize];
        self.fill(&mut body, false)?;
        header.check_body(&body)?;
        let mut payload = pool.get(header.payload_len as usize);
        let summed = header.payload_len >= LONG_PAYLOAD_BYTES && header.flags & FLAG_REPLY == 0;
        let pieces = if summed { service.pieces(&header, &body) } else { Vec::new() };
        let sums = match pieces.iter().map(|len| u64::from(*len)).sum::<u64>() {
            total if total == u64::from(header.payload_len) => self.fill_summed(&mut payload, &pieces)?,
            _ => self.fill(&mut payload, false).map(|_| Vec::new())?,
        };
        // Its bytes may have been here before the call expired that it answers.
        self.expired = None;
        Ok(Some(Frame { header, body: body.into(), payload: payload.freeze(), sums }))
    }

    /// Reads a header and checks its lengths, before anything is allocated for them (P14).
    fn header(&mut self) -> Result<Option<FrameHeader>, ReadError> {
        let mut raw = [0u8; HEADER_BYTES];
        let (start, rest) = raw.split_at_mut(START_BYTES);
        if !self.fill(start, true)? {
            return Ok(None);
        }
        if let Err(error) = FrameHeader::check_start(start) {
            // A peer of another frame version sees this side's version in the refusal.
            if matches!(error, FrameError::Version { .. }) && self.connection.admissions.is_some() {
                return Err(self.refuse(Error::new(Code::ProtocolVersion, error.to_string())));
            }
            return Err(error.into());
        }
        self.fill(rest, false)?;
        let header = FrameHeader::decode(&raw)?;
        let (len, limit) = (header.payload_len, self.connection.payload_max_bytes());
        if len > limit {
            let error = FrameError::TooLong { kind: header.kind, part: "payload", len, limit };
            return Err(self.refuse(Error::new(Code::Invalid, error.to_string())));
        }
        let bytes = header.body_len as usize + header.payload_len as usize;
        if bytes > GREETING_BYTES && !self.connection.is_admitted() {
            let text =
                format!("a frame of {bytes} bytes before the greeting; {GREETING_BYTES} are accepted: greet first");
            return Err(self.refuse(Error::new(Code::Invalid, text)));
        }
        Ok(Some(header))
    }

    fn limits(&self) -> Option<&'a Limits> {
        self.connection.admissions.as_ref().map(|admissions| &admissions.limits)
    }

    /// Fills `out` with pieces of these lengths, which add up to its length; returns the checksum of each.
    fn fill_summed(&mut self, mut out: &mut [u8], pieces: &[u32]) -> Result<Vec<u32>, ReadError> {
        let mut sums = Vec::with_capacity(pieces.len());
        for len in pieces {
            let (piece, rest) = out.split_at_mut(*len as usize);
            out = rest;
            let mut sum = 0;
            for step in piece.chunks_mut(STEP_BYTES) {
                self.fill(step, false)?;
                sum = tessera_accel::checksum::crc32c_append(sum, step);
            }
            sums.push(sum);
        }
        assert!(out.is_empty(), "{} bytes of a payload were not read", out.len());
        Ok(sums)
    }

    /// Fills `out`; false if the stream ended before the first byte and `may_end` is set.
    fn fill(&mut self, out: &mut [u8], may_end: bool) -> Result<bool, ReadError> {
        let mut filled = 0;
        while filled < out.len() {
            let ready = (self.end - self.start).min(out.len() - filled);
            if ready > 0 {
                out[filled..filled + ready].copy_from_slice(&self.buffer[self.start..self.start + ready]);
                self.start += ready;
                filled += ready;
                continue;
            }
            let between_frames = filled == 0 && may_end;
            if self.drained && !self.wait_for_peer(between_frames)? {
                match between_frames {
                    true => self.check_alive()?,
                    false => self.check_sending()?,
                }
                continue;
            }
            let rest = &mut out[filled..];
            let direct = rest.len() >= READ_BUFFER_BYTES;
            let into = if direct { rest } else { &mut self.buffer };
            let most = into.len();
            match (&self.connection.stream.0).read(into) {
                Ok(0) => {
                    self.connection.note_end(self.end_of_stream()?);
                    return match between_frames {
                        true => Ok(false),
                        false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    };
                }
                Ok(n) => {
                    let now = Instant::now();
                    self.sweep(now);
                    // It may answer a call that has just expired.
                    (self.drained, self.heard, self.expired) = (n < most, now, None);
                    if direct { filled += n } else { (self.start, self.end) = (0, n) }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.drained = true,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    /// How the peer ended the stream, which is read to its end. A TCP socket that was reset is closed both ways; it reads like one that the
    /// peer closed once another thread has taken its error.
    fn end_of_stream(&self) -> io::Result<End> {
        let stream = &self.connection.stream;
        let mut fds = [PollFd::new(&stream.0, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default()))?;
        if stream.is_unix() || !fds[0].revents().contains(PollFlags::HUP) {
            return Ok(End::ByPeer);
        }
        // The kernel gives this error if the peer had closed its socket before the reset.
        let had_closed = stream.0.take_error()?.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        Ok(if had_closed { End::ByPeer } else { End::Reset })
    }

    /// As [`Reader::wait`], for bytes of the peer. The connection is idle meanwhile if no frame has begun.
    fn wait_for_peer(&mut self, between_frames: bool) -> Result<bool, ReadError> {
        self.connection.idle.store(between_frames, Ordering::Relaxed);
        let readable = self.wait(true);
        self.connection.idle.store(false, Ordering::Relaxed);
        readable
    }

    /// Waits a tick at most, on an idle connection [`DOZE`]: for bytes of the peer if `reading`, for room in the socket if something is to be written,
    /// for other threads. Then writes, and checks the deadlines. Returns whether the socket has something to read.
    fn wait(&mut self, reading: bool) -> Result<bool, ReadError> {
        let Connection { stream, outbox, .. } = self.connection;
        let unsent = outbox.begin_wait();
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, reading);
        flags.set(PollFlags::OUT, unsent);
        let wake = outbox.wake().fd();
        let mut fds = [PollFd::new(&stream.0, flags), PollFd::new(&wake, PollFlags::IN)];
        let doze = if reading && !unsent && self.may_doze() { DOZE } else { TICK };
        let timeout = Timespec { tv_sec: doze.as_secs() as i64, tv_nsec: i64::from(doze.subsec_nanos()) };
        self.looked = Instant::now();
        let polled = poll(&mut fds, Some(&timeout));
        let (socket, woken) = (fds[0].revents(), !fds[1].revents().is_empty());
        outbox.end_wait(woken);
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if self.connection.is_closed() {
            return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
        }
        if !reading && socket.intersects(PollFlags::HUP | PollFlags::ERR) {
            let error = stream.0.take_error()?;
            return Err(error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()).into());
        }
        outbox.flush(stream)?;
        let now = Instant::now();
        self.check_taking(now)?;
        self.check_greeting(now)?;
        self.sweep(now);
        Ok(socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
    }

    /// Whether nothing is due before a call that begins from now on: no frame has begun, no call has no answer, and the peer has greeted.
    /// Asked once [`Outbox::begin_wait`](crate::outbox::Outbox::begin_wait) has announced the wait, so that a call sees the wait or is seen.
    fn may_doze(&self) -> bool {
        let connection = self.connection;
        let is_idle = connection.idle.load(Ordering::Relaxed) && connection.is_admitted();
        is_idle && self.expired.is_none() && !connection.has_calls()
    }

    /// Ends the connection if the peer takes nothing of what waits for it.
    fn check_taking(&self, now: Instant) -> Result<(), ReadError> {
        let idle = self.connection.unsent_since().map(|since| now.saturating_duration_since(since));
        match idle.filter(|idle| *idle >= self.stall()) {
            Some(idle) => Err(stalled(format!("the peer took nothing of what it was sent for {idle:?}"))),
            None => Ok(()),
        }
    }

    /// Ends the connection if the peer does not finish a frame that it began.
    fn check_sending(&self) -> Result<(), ReadError> {
        let idle = self.heard.elapsed();
        match idle >= self.stall() {
            true => Err(stalled(format!("the peer sent nothing of a frame that it began for {idle:?}"))),
            false => Ok(()),
        }
    }

    /// Ends the connection if the peer owes an answer and sends nothing, no keepalive frame either. The time until this side
    /// last looked counts: it may have been stopped itself since.
    fn check_alive(&self) -> Result<(), ReadError> {
        // The peer does not know that this side has given calls up.
        let asked = self.connection.waits_since().into_iter().chain(self.expired).min();
        let Some(asked) = asked else { return Ok(()) };
        let idle = self.looked.saturating_duration_since(self.heard.max(asked));
        if idle < SILENCE {
            return Ok(());
        }
        let peer = self.connection.peer();
        let text = format!(
            "{peer} owes an answer and sent nothing for {idle:?}: its host is gone, or its process has stopped"
        );
        Err(ReadError::Dropped(Error::new(Code::Unavailable, text)))
    }

    fn check_greeting(&mut self, now: Instant) -> Result<(), ReadError> {
        let Some(limits) = self.limits().filter(|_| !self.connection.is_admitted()) else { return Ok(()) };
        if now.saturating_duration_since(self.opened) < Duration::from_millis(limits.greeting_ms) {
            return Ok(());
        }
        let text = format!("no greeting within {} ms; the first message on a connection is Hello", limits.greeting_ms);
        Err(self.refuse(Error::new(Code::Timeout, text)))
    }

    fn stall(&self) -> Duration {
        self.limits().map_or(STALL, |limits| Duration::from_millis(limits.stall_ms))
    }

    fn sweep(&mut self, now: Instant) {
        if now.duration_since(self.swept) >= TICK {
            self.swept = now;
            let expired = self.connection.expire_calls(now);
            self.expired = self.expired.into_iter().chain(expired).min();
        }
    }

    /// Tells the peer why the connection ends, and gives it a moment to read that: closing a socket while the peer still
    /// sends would discard what it was told.
    pub fn refuse(&mut self, error: Error) -> ReadError {
        self.connection.refuse(&error);
        let stream = &self.connection.stream.0;
        let _ = stream.shutdown(Shutdown::Write);
        let until = Instant::now() + LINGER;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match (&*stream).read(&mut self.buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let timeout = Timespec { tv_sec: 0, tv_nsec: left.min(TICK).as_nanos() as i64 };
                    let _ = poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&timeout));
                }
                Err(_) => break,
            }
        }
        ReadError::Dropped(error)
    }
}

fn stalled(text: String) -> ReadError {
    ReadError::Dropped(Error::new(Code::Timeout, text))
}
