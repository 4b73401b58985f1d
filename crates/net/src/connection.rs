//! A connection: frames both ways, replies matched to calls by request id, one reading thread.

use crate::buffer::BufferPool;
use crate::endpoint::Stream;
use crate::sending::{Outbox, Part};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};
use tessera_wire::frame::{self, FLAG_ERROR, FLAG_REPLY, Frame, FrameError, FrameHeader, HEADER_BYTES};
use tessera_wire::{Code, Error, Kind, Request};

/// Receives the result of a call: encoded reply and payload, or the error. Runs on the connection's reading
/// thread (or on the caller's, if sending failed), so it must not block.
pub type Callback = Box<dyn FnOnce(Result<(Bytes, Bytes), Error>) + Send>;

/// Handles the requests that the peer sends on a connection.
pub trait Service: Send + Sync + 'static {
    /// Handles a request; [`Connection::reply`] sends the reply, now or later, from any thread. Runs on the
    /// connection's reading thread, which reads nothing more from that peer until this returns.
    fn request(&self, connection: &Arc<Connection>, frame: Frame);

    /// Lengths of the pieces of a request's long payload. The connection checksums each piece while it arrives
    /// ([`Frame::sums`]), because the bytes are then still in the CPU's cache. No checksums if the list is empty or
    /// does not add up to the payload.
    fn pieces(&self, header: &FrameHeader, body: &[u8]) -> Vec<u32> {
        let _ = (header, body);
        Vec::new()
    }

    /// Called when this side is about to end the connection. Drop here all state that is valid only while the
    /// connection lives: the peer sees the end only after this returns. Called once, from the thread that ends the
    /// connection; must not block.
    fn closing(&self) {}

    /// The connection has ended; no further request arrives from it.
    fn closed(&self, connection: &Arc<Connection>) {
        let _ = connection;
    }
}

/// Starts a call and waits for its reply.
///
/// # Errors
/// The result of the call, or [`Code::Unavailable`] if it was dropped.
pub(crate) fn wait_for<R: Request>(call: impl FnOnce(Callback)) -> Result<(R::Reply, Bytes), Error> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    call(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    let result = receiver.recv().unwrap_or_else(|_| Err(Error::new(Code::Unavailable, "the call was dropped")));
    tessera_wire::rpc::Answer { token: 0, result }.decode::<R>()
}

struct Pending {
    callback: Callback,
    deadline: Instant,
}

/// One connection, shared by its senders.
pub struct Connection {
    id: u64,
    stream: Stream,
    peer: String,
    outbox: Outbox,
    pending: Mutex<HashMap<u64, Pending>>,
    next_request: AtomicU64,
    closed: AtomicBool,
    /// Runs [`Service::closing`] once.
    closing: Once,
    /// Weak, because a service may own its connections; the reading thread keeps it alive.
    service: Weak<dyn Service>,
    ended_by_peer: AtomicBool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Size of the buffer that reads many small frames at once; at most this much of a payload is copied twice.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// Payloads of at least this many bytes are checksummed while they arrive.
const LONG_PAYLOAD_BYTES: u32 = 32 << 10;
/// Bytes received before each checksum: few enough to be still in the cache.
const STEP_BYTES: usize = 128 << 10;

impl Connection {
    /// Wraps a connected stream and starts its reading thread.
    ///
    /// # Errors
    /// The socket refuses its options, or no thread can be started.
    pub fn start(stream: Stream, service: Arc<dyn Service>, pool: BufferPool) -> io::Result<Arc<Connection>> {
        stream.tune()?;
        let peer = stream.peer();
        let connection = Arc::new(Connection {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            stream,
            peer,
            outbox: Outbox::default(),
            pending: Mutex::default(),
            next_request: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            closing: Once::new(),
            service: Arc::downgrade(&service),
            ended_by_peer: AtomicBool::new(false),
        });
        let reading = connection.clone();
        std::thread::Builder::new().name("connection".into()).spawn(move || {
            match reading.read_loop(&*service, &pool) {
                // `close` sets the flag before it shuts the stream down, which ends this loop too.
                Ok(()) => reading.ended_by_peer.store(!reading.is_closed(), Ordering::Release),
                Err(ReadError::Frame(error)) => {
                    tracing::warn!(peer = %reading.peer, %error, "connection dropped: the peer sent bytes that are not a frame of this protocol");
                }
                Err(error) => tracing::debug!(peer = %reading.peer, %error, "connection ends"),
            }
            reading.close();
            service.closed(&reading);
        })?;
        Ok(connection)
    }

    /// Number of this connection, unique in the process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Address of the peer, for logs.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether the connection has ended or is ending.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether the peer ended the stream, between two frames and before this side did: it closed its socket, or its
    /// process ended. False for a connection that broke or was reset: the peer may not know yet. Final in
    /// [`Service::closed`].
    pub fn ended_by_peer(&self) -> bool {
        self.ended_by_peer.load(Ordering::Acquire)
    }

    /// Ends the connection; every pending call is answered with [`Code::Unavailable`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // A second thread waits here: the peer must not see the end before `closing` has returned.
        self.closing.call_once(|| {
            if let Some(service) = self.service.upgrade() {
                service.closing();
            }
        });
        // Blocked reads and writes return.
        let _ = self.stream.0.shutdown(std::net::Shutdown::Both);
        self.outbox.close();
        let pending = std::mem::take(&mut *self.pending.lock());
        for (_, call) in pending {
            (call.callback)(Err(Error::new(Code::Unavailable, format!("connection to {} broke", self.peer))));
        }
    }

    /// Sends a request; `callback` is called exactly once.
    pub fn call(&self, kind: Kind, body: &[u8], payload: Vec<Bytes>, timeout: Duration, callback: Callback) {
        let request_id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let before = self.pending.lock().insert(request_id, Pending { callback, deadline: Instant::now() + timeout });
        assert!(before.is_none(), "request id {request_id} was used twice on one connection");
        let parts = payload.into_iter().map(Part::Bytes).collect();
        // A `close` before the insert has missed this call; a later one fails it.
        if self.is_closed() || self.send(kind as u16, 0, request_id, body, parts).is_err() {
            self.close();
        }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// The peer's error, or [`Code::Unavailable`], [`Code::Timeout`].
    pub fn call_wait<R: Request>(
        &self,
        message: &R,
        payload: Vec<Bytes>,
        timeout: Duration,
    ) -> Result<(R::Reply, Bytes), Error> {
        wait_for::<R>(|callback| self.call(R::KIND, &message.encode_to_vec(), payload, timeout, callback))
    }

    /// Answers request `request_id` of the peer. A failure to send ends the connection.
    pub fn reply(&self, kind: u16, request_id: u64, result: Result<(Bytes, Vec<Part>), Error>) {
        let sent = match result {
            Ok((body, payload)) => self.send(kind, FLAG_REPLY, request_id, &body, payload),
            Err(error) => {
                let body = prost::Message::encode_to_vec(&error);
                self.send(kind, FLAG_REPLY | FLAG_ERROR, request_id, &body, Vec::new())
            }
        };
        if sent.is_err() {
            self.close();
        }
    }

    fn send(&self, kind: u16, flags: u8, request_id: u64, body: &[u8], payload: Vec<Part>) -> io::Result<()> {
        let payload_len = payload.iter().map(Part::len_bytes).sum::<usize>();
        if body.len() > frame::MAX_BODY_BYTES as usize || payload_len > frame::MAX_PAYLOAD_BYTES as usize {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("frame of kind {kind:#06x} is too long: {} + {payload_len} bytes", body.len()),
            ));
        }
        let head = frame::encode_raw(kind, flags, request_id, body, payload_len as u32);
        self.outbox.send(&self.stream, std::iter::once(Part::Bytes(head.into())).chain(payload))
    }

    fn read_loop(self: &Arc<Self>, service: &dyn Service, pool: &BufferPool) -> Result<(), ReadError> {
        let mut reader =
            Reader { connection: self, buffer: vec![0; READ_BUFFER_BYTES], start: 0, end: 0, swept: Instant::now() };
        while let Some(frame) = reader.frame(service, pool)? {
            if frame.header.flags & FLAG_REPLY == 0 {
                service.request(self, frame);
            } else {
                self.complete(frame);
            }
        }
        Ok(())
    }

    fn complete(&self, frame: Frame) {
        // Without an entry the reply came after its call's deadline.
        let Some(call) = self.pending.lock().remove(&frame.header.request_id) else { return };
        let result = if frame.header.flags & FLAG_ERROR == 0 {
            Ok((frame.body, frame.payload))
        } else {
            let decoded = frame::decode_message::<Error>(frame.header.kind, &frame.body);
            Err(decoded
                .unwrap_or_else(|e| Error::new(Code::Internal, format!("{} sent an unreadable error: {e}", self.peer))))
        };
        (call.callback)(result);
    }

    fn expire_calls(&self, now: Instant) {
        let late: Vec<_> = self.pending.lock().extract_if(|_, call| call.deadline <= now).collect();
        for (_, call) in late {
            (call.callback)(Err(Error::new(Code::Timeout, format!("{} did not answer in time", self.peer))));
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
}

/// Reads frames from a stream; every read times out after a tick, to expire calls.
struct Reader<'a> {
    connection: &'a Connection,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    swept: Instant,
}

impl Reader<'_> {
    /// The next frame; `None` when the peer has closed between frames.
    fn frame(&mut self, service: &dyn Service, pool: &BufferPool) -> Result<Option<Frame>, ReadError> {
        let mut raw = [0u8; HEADER_BYTES];
        if !self.fill(&mut raw, true)? {
            return Ok(None);
        }
        let header = FrameHeader::decode(&raw)?;
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
        Ok(Some(Frame { header, body: body.into(), payload: payload.freeze(), sums }))
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
            let rest = &mut out[filled..];
            let direct = rest.len() >= READ_BUFFER_BYTES;
            match (&self.connection.stream.0).read(if direct { rest } else { &mut self.buffer }) {
                Ok(0) if filled == 0 && may_end => return Ok(false),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) if direct => filled += n,
                Ok(n) => (self.start, self.end) = (0, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if self.connection.is_closed() {
                        return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
                    }
                }
                Err(e) => return Err(e.into()),
            }
            self.sweep();
        }
        Ok(true)
    }

    fn sweep(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.swept) >= crate::endpoint::READ_TICK {
            self.swept = now;
            self.connection.expire_calls(now);
        }
    }
}
