//! A connection: frames both ways, replies matched to calls by request id, one thread that reads and writes what other
//! threads left ([`crate::outbox`]).

use crate::buffer::BufferPool;
use crate::endpoint::Stream;
use crate::keepalive;
use crate::limits::Admissions;
use crate::outbox::Outbox;
use crate::reading::{DOZE, ReadError, Reader};
use crate::sending::{Outgoing, Part, Purpose};
use crate::told;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};
use tessera_wire::frame::{self, FLAG_ERROR, FLAG_REPLY, Frame, FrameError, FrameHeader};
use tessera_wire::{Code, Error, Kind, Request, Role};

/// Receives the result of a call: encoded reply and payload, or the error. Runs on the connection's own
/// thread (or on the caller's, if sending failed), so it must not block.
pub type Callback = Box<dyn FnOnce(Result<(Bytes, Bytes), Error>) + Send>;

/// Handles the requests that the peer sends on a connection.
pub trait Service: Send + Sync + 'static {
    /// Handles a request; [`Connection::reply`] sends the reply, now or later, from any thread. Runs on the
    /// connection's own thread, which reads nothing more from that peer until this returns. The first request of a peer is
    /// its greeting: [`Connection::admit`] opens the connection for more than that.
    fn request(&self, connection: &Arc<Connection>, frame: Frame);

    /// Bytes that a request takes until it is answered, its answer included, roughly. A server reads no further
    /// request of a connection while those without an answer take too much ([`crate::Limits::outstanding_bytes`]).
    fn cost_bytes(&self, frame: &Frame) -> usize {
        REQUEST_BYTES + frame.body.len()
    }

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

/// What a request takes besides its body, roughly.
const REQUEST_BYTES: usize = 256;
/// Request id of frames that answer no request: the refusal of a connection, and keepalive frames (docs/wire.md, section 2).
pub(crate) const NO_REQUEST_ID: u64 = 0;

struct Pending {
    callback: Callback,
    began: Instant,
    deadline: Instant,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This side ended it, or it broke. The peer may live, and may not know.
    Broken,
    /// The peer's kernel reset it: the peer's process was killed or closed its socket before it read everything. Something between
    /// may have done so, too: then the peer lives, and may not know yet.
    Reset,
    /// The peer ended the stream before this side did: it closed its socket, or its process ended.
    ByPeer,
}

/// One connection, shared by its senders.
pub struct Connection {
    id: u64,
    pub(crate) stream: Stream,
    peer: String,
    pub(crate) outbox: Outbox,
    /// Of the server that accepted the connection; `None` if this side opened it.
    pub(crate) admissions: Option<Arc<Admissions>>,
    admitted: AtomicBool,
    /// It greeted as a client.
    is_client: AtomicBool,
    /// Why the connection ends, for the calls that it fails.
    why: Mutex<Option<Error>>,
    pending: Mutex<HashMap<u64, Pending>>,
    next_request: AtomicU64,
    closed: AtomicBool,
    /// Runs [`Service::closing`] once.
    closing: Once,
    /// Weak, because a service may own its connections; the reading thread keeps it alive.
    service: Weak<dyn Service>,
    end: Mutex<End>,
    /// Its thread waits for the next frame of the peer.
    pub(crate) idle: AtomicBool,
    /// The peer waited at the last [`Connection::keep_alive`].
    was_awaited: AtomicBool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Connection {
    /// Wraps a stream that this side connected, and starts its thread.
    ///
    /// # Errors
    /// The socket refuses its options, or no thread or file descriptor is free.
    pub fn start(stream: Stream, service: Arc<dyn Service>, pool: BufferPool) -> io::Result<Arc<Connection>> {
        Connection::start_with(stream, service, pool, None)
    }

    /// As [`Connection::start`], for a stream that a server accepted.
    ///
    /// # Errors
    /// As [`Connection::start`].
    pub(crate) fn start_with(
        stream: Stream,
        service: Arc<dyn Service>,
        pool: BufferPool,
        admissions: Option<Arc<Admissions>>,
    ) -> io::Result<Arc<Connection>> {
        stream.tune()?;
        let peer = stream.peer();
        let connection = Arc::new(Connection {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            stream,
            peer,
            outbox: Outbox::new(admissions.clone())?,
            admitted: AtomicBool::new(admissions.is_none()),
            is_client: AtomicBool::new(false),
            admissions,
            why: Mutex::default(),
            pending: Mutex::default(),
            next_request: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            closing: Once::new(),
            service: Arc::downgrade(&service),
            end: Mutex::new(End::Broken),
            idle: AtomicBool::new(false),
            was_awaited: AtomicBool::new(false),
        });
        keepalive::watch(&connection)?;
        let reading = connection.clone();
        std::thread::Builder::new().name("connection".into()).spawn(move || {
            if let Err(error) = reading.read_loop(&*service, &pool) {
                reading.ends_by(error);
            }
            reading.close();
            service.closed(&reading);
        })?;
        Ok(connection)
    }

    #[cfg(test)]
    pub(crate) fn skip_ids(&self, next: u64) {
        self.next_request.store(next, Ordering::Relaxed);
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

    /// How it ended. Final in [`Service::closed`].
    pub fn end(&self) -> End {
        *self.end.lock()
    }

    /// Notes how the connection ends, unless that is known.
    pub(crate) fn note_end(&self, end: End) {
        let mut noted = self.end.lock();
        // `close` sets the flag before it shuts the stream down, which ends reads and writes too.
        if *noted == End::Broken && !self.is_closed() {
            *noted = end;
        }
    }

    /// Reading or writing has failed. Whichever thread meets a reset first takes it from the socket.
    fn note_failure(&self, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::ConnectionReset => self.note_end(End::Reset),
            // Of the kernel: the outbox's own has no number.
            io::ErrorKind::BrokenPipe if error.raw_os_error().is_some() => self.note_end(End::Reset),
            _ => {}
        }
    }

    /// Accepts the peer's greeting: the connection counts in the share of `role`, and long frames may follow.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if the server has as many connections of that role as it accepts, [`Code::Invalid`] if the
    /// peer has greeted as another role.
    pub fn admit(&self, role: Role) -> Result<(), Error> {
        if let Some(admissions) = &self.admissions {
            admissions.admit(self.id, role)?;
            self.is_client.store(!matches!(role, Role::Node | Role::Manager), Ordering::Relaxed);
            self.admitted.store(true, Ordering::Release);
            self.note_greeting();
        }
        Ok(())
    }

    /// Whether the peer's greeting was accepted; true if this side opened the connection.
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Acquire)
    }

    /// The longest payload that this side accepts.
    pub(crate) fn payload_max_bytes(&self) -> u32 {
        let limits = self.admissions.as_ref().map(|admissions| &admissions.limits);
        let of_client = limits.filter(|_| self.is_client.load(Ordering::Relaxed));
        of_client.map_or(frame::MAX_PAYLOAD_BYTES, |limits| limits.client_payload_bytes)
    }

    /// See [`Outbox::unsent_since`].
    pub(crate) fn unsent_since(&self) -> Option<Instant> {
        self.outbox.unsent_since()
    }

    /// When the oldest call without an answer began.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        self.pending.lock().values().map(|call| call.began).min()
    }

    /// Whether calls have no answer yet.
    pub(crate) fn has_calls(&self) -> bool {
        !self.pending.lock().is_empty()
    }

    /// Called every [`keepalive::EVERY`] while a peer waits: tells a peer that has waited for at least that long that this side lives, unless
    /// something is on its way to it that fills the socket. Never waits. Returns whether the peer waits.
    pub(crate) fn keep_alive(&self) -> bool {
        // A request that is not read yet may wait for the connection's thread, too.
        let is_busy = !self.idle.load(Ordering::Relaxed);
        let is_awaited = self.is_admitted() && (is_busy || self.outbox.owes_answer());
        let was_awaited = self.was_awaited.swap(is_awaited, Ordering::Relaxed);
        // What waits to be sent is no sign of life before it is sent. If the stream fails, the connection's thread sees that it ended.
        let push = || self.outbox.push(&self.stream).inspect_err(|error| self.note_failure(error));
        if is_awaited && was_awaited && push().unwrap_or(false) {
            let _ = self.send(Kind::Hello as u16, FLAG_REPLY, NO_REQUEST_ID, &[], Vec::new());
        }
        is_awaited
    }

    /// Tells the peer why the connection ends.
    pub(crate) fn refuse(&self, error: &Error) {
        let body = prost::Message::encode_to_vec(error);
        let _ = self.send(Kind::Hello as u16, FLAG_REPLY | FLAG_ERROR, NO_REQUEST_ID, &body, Vec::new());
    }

    /// As [`Connection::refuse`], and ends the connection.
    pub(crate) fn dismiss(&self, error: &Error) {
        tracing::debug!(peer = %self.peer, %error, "connection dropped");
        self.refuse(error);
        self.close();
    }

    /// The peer has greeted. If it sends what is no frame later, the log names it again.
    pub(crate) fn note_greeting(&self) {
        told::forget(self.lasting_peer());
    }

    /// The part of the peer's address that its next connection has, too.
    fn lasting_peer(&self) -> &str {
        match (&self.admissions, self.peer.rsplit_once(':')) {
            (Some(_), Some((host, _))) => host,
            _ => &self.peer,
        }
    }

    /// Keeps for the pending calls why the connection ends, and logs it.
    fn ends_by(&self, error: ReadError) {
        let why = match error {
            ReadError::Frame(error) => {
                const TEXT: &str = "connection dropped: the peer sent bytes that are not a frame of this protocol";
                match told::is_first(self.lasting_peer()) {
                    true => tracing::warn!(peer = %self.peer, %error, "{TEXT}"),
                    false => tracing::debug!(peer = %self.peer, %error, "{TEXT}"),
                }
                let code = match error {
                    FrameError::Version { .. } => Code::ProtocolVersion,
                    _ => Code::Unavailable,
                };
                Error::new(code, format!("{}: {error}", self.peer))
            }
            ReadError::Dropped(error) => {
                // Whoever reaches the port could fill the log.
                match self.is_admitted() {
                    true => tracing::warn!(peer = %self.peer, %error, "connection dropped"),
                    false => tracing::debug!(peer = %self.peer, %error, "connection dropped"),
                }
                error
            }
            ReadError::Refused(error) => error,
            ReadError::Io(error) => {
                self.note_failure(&error);
                return tracing::debug!(peer = %self.peer, %error, "connection ends");
            }
        };
        *self.why.lock() = Some(why);
    }

    /// Ends the connection; every pending call is answered with [`Code::Unavailable`], or with the reason that the peer gave.
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
            (call.callback)(Err(self.broken()));
        }
    }

    /// The error of a call that this connection cannot carry any more.
    fn broken(&self) -> Error {
        let why = self.why.lock().clone();
        why.unwrap_or_else(|| Error::new(Code::Unavailable, format!("connection to {} broke", self.peer)))
    }

    /// Sends a request; `callback` is called exactly once.
    pub fn call(&self, kind: Kind, body: &[u8], payload: Vec<Bytes>, timeout: Duration, callback: Callback) {
        let request_id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let before = self.pending.lock().insert(request_id, Pending { callback, began, deadline: began + timeout });
        assert!(before.is_none(), "request id {request_id} was used twice on one connection");
        if timeout < DOZE {
            self.outbox.wake_thread();
        }
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

    /// Answers request `request_id` of the peer. A failure to send ends the connection. Instead of a body that is too long
    /// for a frame the peer gets an error: if the connection ended, it would repeat its request on another one.
    pub fn reply(&self, kind: u16, request_id: u64, result: Result<(Bytes, Vec<Part>), Error>) {
        let result = match result {
            Ok((body, _)) if body.len() > frame::MAX_BODY_BYTES as usize => {
                let text = format!("the answer has {} bytes, a frame takes {}", body.len(), frame::MAX_BODY_BYTES);
                tracing::error!(peer = %self.peer, kind, text);
                Err(Error::new(Code::Internal, text))
            }
            result => result,
        };
        let sent = match result {
            Ok((body, payload)) => self.send(kind, FLAG_REPLY, request_id, &body, payload),
            Err(error) => {
                let body = prost::Message::encode_to_vec(&error);
                self.send(kind, FLAG_REPLY | FLAG_ERROR, request_id, &body, Vec::new())
            }
        };
        if let Err(error) = sent {
            if !self.is_closed() {
                tracing::warn!(peer = %self.peer, %error, "connection dropped: an answer could not be sent");
            }
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
        let purpose = match flags & FLAG_REPLY {
            0 => Purpose::Call(request_id),
            _ => Purpose::Answer(request_id),
        };
        let parts = std::iter::once(Part::Bytes(head.into())).chain(payload);
        self.outbox.send(&self.stream, Outgoing::new(purpose, parts)).inspect_err(|error| self.note_failure(error))
    }

    fn read_loop(self: &Arc<Self>, service: &dyn Service, pool: &BufferPool) -> Result<(), ReadError> {
        let mut reader = Reader::new(self);
        while let Some(frame) = reader.frame(service, pool)? {
            if frame.header.flags & FLAG_REPLY != 0 {
                self.complete(frame)?;
            } else if self.outbox.begin(frame.header.request_id, service.cost_bytes(&frame)) {
                service.request(self, frame);
            } else {
                let text = format!("request {} has no answer yet, and its id came again", frame.header.request_id);
                return Err(reader.refuse(Error::new(Code::Invalid, text)));
            }
        }
        Ok(())
    }

    fn complete(&self, frame: Frame) -> Result<(), ReadError> {
        let result = if frame.header.flags & FLAG_ERROR == 0 {
            Ok((frame.body, frame.payload))
        } else {
            let decoded = frame::decode_message::<Error>(frame.header.kind, &frame.body);
            Err(decoded
                .unwrap_or_else(|e| Error::new(Code::Internal, format!("{} sent an unreadable error: {e}", self.peer))))
        };
        if frame.header.request_id == NO_REQUEST_ID {
            return result.map_or_else(|error| Err(ReadError::Refused(error)), |_| Ok(()));
        }
        // The callback may call again, so nothing is locked then.
        let call = self.pending.lock().remove(&frame.header.request_id);
        // Without an entry the reply came after its call's deadline.
        if let Some(call) = call {
            (call.callback)(result);
        }
        Ok(())
    }

    /// Ends the calls whose deadline is over. Returns when the oldest of them began, of those that the peer knows.
    pub(crate) fn expire_calls(&self, now: Instant) -> Option<Instant> {
        let mut late: HashMap<_, _> = self.pending.lock().extract_if(|_, call| call.deadline <= now).collect();
        if late.is_empty() {
            return None;
        }
        let ids = late.keys().copied().collect();
        let unknown = self.outbox.give_up(ids);
        let oldest = late.iter().filter(|(id, _)| !unknown.contains(id)).map(|(_, call)| call.began).min();
        for (_, call) in late.drain() {
            (call.callback)(Err(Error::new(Code::Timeout, format!("{} did not answer in time", self.peer))));
        }
        oldest
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}
