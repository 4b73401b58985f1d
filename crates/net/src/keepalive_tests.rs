//! Peers that are silent, and peers that are slow: calls to the first end soon, those to the others wait.

use crate::dialer::NoService;
use crate::keepalive::{EVERY, SILENCE};
use crate::*;
use bytes::Bytes;
use parking_lot::Mutex;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tessera_wire::frame::{FLAG_REPLY, FrameHeader, HEADER_BYTES, encode_message};
use tessera_wire::meta::{GetStatus, RecallLease};
use tessera_wire::*;

/// Ends a call long after a silent peer must have been noticed.
const CALL: Duration = Duration::from_secs(60);
/// A silent peer is noticed within this time even if the machine is busy.
const SOON: Duration = Duration::from_secs(30);
/// Longer than a peer may be silent.
const LONG: Duration = Duration::from_secs(4);
const _: () = assert!(LONG.as_millis() > SILENCE.as_millis());

type Asked = (Arc<Connection>, Frame);

/// Answers greetings, and leaves other requests to the test. Its connection's thread is busy for a while with each of them.
struct Desk {
    busy: Duration,
    asked: Mutex<Sender<Asked>>,
}

impl Desk {
    fn with_thread_busy_for(busy: Duration) -> (Arc<Desk>, Receiver<Asked>) {
        let (sender, asked) = channel();
        (Arc::new(Desk { busy, asked: Mutex::new(sender) }), asked)
    }
}

impl Service for Desk {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        if frame.header.kind != Kind::Hello as u16 {
            std::thread::sleep(self.busy);
            return self.asked.lock().send((connection.clone(), frame)).unwrap();
        }
        connection.admit(Role::Client).unwrap();
        connection.reply(frame.header.kind, frame.header.request_id, Ok((Bytes::new(), Vec::new())));
    }
}

fn server(desk: Arc<Desk>, limits: Limits) -> Server {
    Server::start(&["127.0.0.1:0".parse().unwrap()], desk, BufferPool::new(0), limits).unwrap()
}

fn answer((connection, frame): Asked) {
    connection.reply(frame.header.kind, frame.header.request_id, Ok((Bytes::new(), Vec::new())));
}

fn dialer() -> Dialer {
    Dialer::new(Hello::default(), Arc::new(NoService), BufferPool::new(0))
}

fn ask(dialer: &Dialer, server: &Server, result: &Sender<Result<(), Error>>) {
    let result = result.clone();
    let callback: Callback = Box::new(move |answer| result.send(answer.map(drop)).unwrap());
    dialer.call(&server.endpoints()[0], Kind::GetStatus, Bytes::new(), Vec::new(), CALL, callback);
}

fn header_of(stream: &mut TcpStream) -> FrameHeader {
    let mut raw = [0; HEADER_BYTES];
    stream.read_exact(&mut raw).unwrap();
    FrameHeader::decode(&raw).unwrap()
}

fn greeted(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.endpoints()[0].to_string()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(&encode_message(Kind::Hello as u16, 0, 1, &Hello::default(), 0)).unwrap();
    assert_eq!(header_of(&mut stream).request_id, 1);
    stream
}

/// A server that greets one peer and reads its first request; then `act` has the stream.
fn answering(act: impl FnOnce(TcpStream, FrameHeader) + Send + 'static) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let hello = header_of(&mut stream);
        stream.read_exact(&mut vec![0; hello.body_len as usize]).unwrap();
        let reply = encode_message(hello.kind, FLAG_REPLY, hello.request_id, &HelloReply::default(), 0);
        stream.write_all(&reply).unwrap();
        let request = header_of(&mut stream);
        act(stream, request);
    });
    Endpoint::Tcp(address)
}

fn ended_as_dead(result: Result<(), Error>, began: Instant) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    assert!(error.message.contains("owes an answer"), "{error:?}");
    let took = began.elapsed();
    assert!(took >= SILENCE && took < SOON, "it took {took:?}");
}

#[test]
fn a_call_to_a_peer_that_falls_silent_ends_soon() {
    let endpoint = answering(|stream, _| {
        std::thread::sleep(CALL);
        drop(stream);
    });
    let (dialer, began) = (dialer(), Instant::now());
    ended_as_dead(dialer.call_wait(&endpoint, &GetStatus {}, vec![], CALL).map(drop), began);
}

/// Who asks again and again waits for no answer that long (consensus messages, for one).
#[test]
fn short_calls_to_a_peer_that_falls_silent_find_it_dead() {
    let endpoint = answering(|stream, _| {
        std::thread::sleep(CALL);
        drop(stream);
    });
    let (dialer, began) = (dialer(), Instant::now());
    let short = SILENCE / 4;
    let dead = loop {
        let result = dialer.call_wait(&endpoint, &GetStatus {}, vec![], short).map(drop);
        if result.as_ref().is_err_and(|error| error.code() != Code::Timeout) {
            break result;
        }
        assert!(began.elapsed() < SOON, "every call times out");
    };
    ended_as_dead(dead, began);
}

/// A call that nobody waits for any more takes nothing of what the peer can take.
#[test]
fn a_peer_that_reads_late_gets_no_call_that_has_expired() {
    const LONG_BYTES: usize = 16 << 20;
    let (read, reads) = channel();
    let (seen, ids) = channel();
    let endpoint = answering(move |mut stream, first| {
        reads.recv().unwrap();
        stream.read_exact(&mut vec![0; first.body_len as usize + first.payload_len as usize]).unwrap();
        let next = header_of(&mut stream);
        seen.send((first.request_id, next.request_id, next.payload_len)).unwrap();
    });
    let dialer = dialer();
    let payload = || vec![Bytes::from(vec![7; LONG_BYTES])];
    let short = Duration::from_millis(200);
    for _ in 0..4 {
        let error = dialer.call_wait(&endpoint, &GetStatus {}, payload(), short).unwrap_err();
        assert_eq!(error.code(), Code::Timeout, "{error:?}");
    }
    let (dropped, _ended) = channel();
    let callback: Callback = Box::new(move |answer| _ = dropped.send(answer.map(drop)));
    dialer.call(&endpoint, Kind::GetStatus, Bytes::new(), Vec::new(), CALL, callback);
    read.send(()).unwrap();
    let (first, next, payload_len) = ids.recv_timeout(SOON).unwrap();
    assert_eq!((next, payload_len), (first + 4, 0), "after call {first} comes the one that waits");
}

/// The side that accepted a connection may ask, too.
#[test]
fn a_call_to_a_silent_peer_that_opened_the_connection_ends_soon() {
    let (desk, asked) = Desk::with_thread_busy_for(Duration::ZERO);
    let server = server(desk, Limits::default());
    let mut silent = greeted(&server);
    silent.write_all(&encode_message(Kind::GetStatus as u16, 0, 2, &GetStatus {}, 0)).unwrap();
    let (connection, _) = asked.recv_timeout(SOON).unwrap();
    let began = Instant::now();
    ended_as_dead(connection.call_wait(&RecallLease::default(), vec![], CALL).map(drop), began);
}

#[test]
fn a_peer_that_answers_late_is_waited_for() {
    let (desk, asked) = Desk::with_thread_busy_for(Duration::ZERO);
    let server = server(desk, Limits::default());
    let (dialer, (sender, result)) = (dialer(), channel());
    ask(&dialer, &server, &sender);
    let late = asked.recv_timeout(SOON).unwrap();
    std::thread::sleep(LONG);
    answer(late);
    assert_eq!(result.recv_timeout(SOON).unwrap(), Ok(()));
}

#[test]
fn a_peer_that_opened_the_connection_and_answers_late_is_waited_for() {
    let ((desk, asked), (peers_desk, asked_of_peer)) =
        (Desk::with_thread_busy_for(Duration::ZERO), Desk::with_thread_busy_for(Duration::ZERO));
    let server = server(desk, Limits::default());
    let (sender, _result) = channel();
    let dialer = Dialer::new(Hello::default(), peers_desk, BufferPool::new(0));
    ask(&dialer, &server, &sender);
    let (connection, _) = asked.recv_timeout(SOON).unwrap();
    let late = std::thread::spawn(move || {
        let late = asked_of_peer.recv_timeout(SOON).unwrap();
        std::thread::sleep(LONG);
        answer(late);
    });
    connection.call_wait(&RecallLease::default(), vec![], CALL).unwrap();
    late.join().unwrap();
}

/// A node's thread reads from disks, which may take seconds. The second request is not read before the first one is done.
#[test]
fn a_peer_whose_thread_waits_for_a_disk_is_waited_for() {
    let (desk, asked) = Desk::with_thread_busy_for(LONG);
    let server = server(desk, Limits::default());
    let (dialer, (sender, result)) = (dialer(), channel());
    (0..2).for_each(|_| ask(&dialer, &server, &sender));
    for _ in 0..2 {
        answer(asked.recv_timeout(SOON).unwrap());
        assert_eq!(result.recv_timeout(SOON).unwrap(), Ok(()));
    }
}

#[test]
fn a_peer_that_holds_requests_back_is_waited_for() {
    let (desk, asked) = Desk::with_thread_busy_for(Duration::ZERO);
    let server = server(desk, Limits { outstanding_bytes: 1, ..Limits::default() });
    let (dialer, (sender, result)) = (dialer(), channel());
    (0..2).for_each(|_| ask(&dialer, &server, &sender));
    let first = asked.recv_timeout(SOON).unwrap();
    assert!(asked.recv_timeout(LONG).is_err(), "the second request was not held back");
    answer(first);
    answer(asked.recv_timeout(SOON).unwrap());
    (0..2).for_each(|_| assert_eq!(result.recv_timeout(SOON).unwrap(), Ok(())));
}

/// A node sends payloads straight from its disks, and sends nothing else while one takes long.
#[test]
fn an_answer_that_pauses_in_its_middle_is_waited_for() {
    let endpoint = answering(|mut stream, request| {
        let reply = encode_message(request.kind, FLAG_REPLY, request.request_id, &Ack {}, 8);
        stream.write_all(&reply).unwrap();
        std::thread::sleep(LONG);
        stream.write_all(&[7; 8]).unwrap();
        let _ = stream.read(&mut [0]);
    });
    let (_, payload) = dialer().call_wait(&endpoint, &GetStatus {}, vec![], CALL).unwrap();
    assert_eq!(payload, [7; 8][..]);
}

/// Waits for a while in which nothing arrives. On a busy machine the connection's thread idles late.
fn falls_silent(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(4 * EVERY)).unwrap();
    let until = Instant::now() + SOON;
    while stream.read(&mut [0; HEADER_BYTES]).map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock) {
        assert!(Instant::now() < until, "keepalive frames are sent to an idle peer");
    }
    stream.set_read_timeout(Some(SOON)).unwrap();
}

/// A request takes long on its way, so its receiver says that it lives before it has all of it. Idle peers send nothing.
#[test]
fn keepalive_frames_are_sent_while_a_request_arrives_and_not_to_idle_peers() {
    let (desk, asked) = Desk::with_thread_busy_for(Duration::ZERO);
    let server = server(desk, Limits::default());
    let mut stream = greeted(&server);
    falls_silent(&mut stream);
    let request = encode_message(Kind::GetStatus as u16, 0, 2, &GetStatus {}, 0);
    let (first, rest) = request.split_at(HEADER_BYTES / 2);
    stream.write_all(first).unwrap();
    let keepalive = header_of(&mut stream);
    assert_eq!((keepalive.request_id, keepalive.flags, keepalive.body_len), (0, FLAG_REPLY, 0));
    stream.write_all(rest).unwrap();
    answer(asked.recv_timeout(SOON).unwrap());
    while header_of(&mut stream).request_id != 2 {}
}

/// Sends 1 MiB of a file, and then an answer to an earlier request; the next request keeps its thread busy.
struct Reads {
    file: Arc<std::fs::File>,
}

impl Service for Reads {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        let (kind, id) = (frame.header.kind, frame.header.request_id);
        let file = |len| FileRange { file: self.file.clone(), offset: 0, len };
        let nothing = || Ok((Bytes::new(), Vec::new()));
        match id {
            1 => {
                connection.admit(Role::Client).unwrap();
                connection.reply(kind, id, nothing());
            }
            2..=9 => connection.reply(kind, id, Ok((Bytes::new(), vec![Part::File(file(16 << 20))]))),
            99 => {
                // A moment at the disk, in which the next requests arrive.
                std::thread::sleep(Duration::from_millis(300));
                connection.reply(kind, id, nothing());
            }
            100 => {}
            101 => {
                connection.reply(kind, id, Ok((Bytes::new(), vec![Part::File(file(1 << 20))])));
                connection.reply(kind, 100, nothing());
            }
            _ => {
                std::thread::sleep(LONG + LONG);
                connection.reply(kind, id, nothing());
            }
        }
    }
}

#[test]
fn a_peer_whose_thread_waits_for_a_disk_between_two_answers_is_waited_for() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(16 << 20).unwrap();
    let limits = Limits { outstanding_bytes: 1 << 30, ..Limits::default() };
    let server = Server::start(
        &["127.0.0.1:0".parse().unwrap()],
        Arc::new(Reads { file: Arc::new(file) }),
        BufferPool::new(0),
        limits,
    )
    .unwrap();
    let mut stream = greeted(&server);
    let request = |id| encode_message(Kind::GetStatus as u16, 0, id, &GetStatus {}, 0);
    fn skip(stream: &mut TcpStream) -> FrameHeader {
        loop {
            let header = header_of(stream);
            std::io::copy(&mut stream.take(u64::from(header.payload_len)), &mut std::io::sink()).unwrap();
            if header.request_id != 0 {
                return header;
            }
        }
    }
    for id in 2..=9 {
        stream.write_all(&request(id)).unwrap();
        assert_eq!(skip(&mut stream).request_id, id);
    }
    stream.write_all(&[request(100), request(101), request(102)].concat()).unwrap();
    skip(&mut stream);
    let whole = Instant::now();
    header_of(&mut stream);
    assert!(whole.elapsed() < SILENCE, "between two frames nothing came for {:?}", whole.elapsed());
}

/// The same with this crate's own client: its calls end although the peer lives.
#[test]
fn calls_to_a_live_peer_do_not_end() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(16 << 20).unwrap();
    let limits = Limits { outstanding_bytes: 1 << 30, ..Limits::default() };
    let reads = Arc::new(Reads { file: Arc::new(file) });
    let server = Server::start(&["127.0.0.1:0".parse().unwrap()], reads, BufferPool::new(0), limits).unwrap();
    let stream = endpoint::Stream::connect(&server.endpoints()[0], SOON).unwrap();
    let connection = Connection::start(stream, Arc::new(NoService), BufferPool::new(64 << 20)).unwrap();
    connection.call_wait(&Hello::default(), vec![], SOON).unwrap();
    for _ in 2..=9 {
        connection.call_wait(&GetStatus {}, vec![], SOON).unwrap();
    }
    // Ids 10 to 98 are answered late; skip them without sending.
    connection.skip_ids(99);
    let (sender, result) = channel();
    for id in 99..=102 {
        let sender = sender.clone();
        let done: Callback = Box::new(move |answer| sender.send((id, answer.map(drop))).unwrap());
        connection.call(Kind::GetStatus, &prost::Message::encode_to_vec(&GetStatus {}), vec![], CALL, done);
    }
    for _ in 99..=102 {
        let (id, answer) = result.recv_timeout(SOON).unwrap();
        assert_eq!(answer, Ok(()), "call {id}");
    }
}
