//! Peers that do not read, do not greet, send too much or speak another version (P14): they harm themselves alone.

use crate::connection::NO_REQUEST_ID;
use crate::dialer::NoService;
use crate::*;
use bytes::Bytes;
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tessera_wire::frame::{FLAG_ERROR, FLAG_REPLY, FrameHeader, HEADER_BYTES, encode_message};
use tessera_wire::meta::GetStatus;
use tessera_wire::*;

const WAIT: Duration = Duration::from_secs(10);
const ANSWER_BYTES: usize = 1 << 20;

type Asked = (Arc<Connection>, Frame);

/// Leaves all requests but the greeting to one thread of the test.
struct Desk(Mutex<Sender<Asked>>);

impl Service for Desk {
    fn cost_bytes(&self, _: &Frame) -> usize {
        ANSWER_BYTES
    }

    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        if frame.header.kind != Kind::Hello as u16 {
            return self.0.lock().send((connection.clone(), frame)).unwrap();
        }
        let hello = <Hello as prost::Message>::decode(&frame.body[..]).unwrap();
        let reply = prost::Message::encode_to_vec(&HelloReply::default());
        let result = connection.admit(hello.role()).map(|()| (reply.into(), Vec::new()));
        connection.reply(frame.header.kind, frame.header.request_id, result);
    }
}

struct Rig {
    server: Server,
    asked: std::sync::mpsc::Receiver<Asked>,
}

fn rig(limits: Limits) -> Rig {
    let (sender, asked) = channel();
    let desk = Arc::new(Desk(Mutex::new(sender)));
    let server = Server::start(&["127.0.0.1:0".parse().unwrap()], desk, BufferPool::new(0), limits).unwrap();
    Rig { server, asked }
}

impl Rig {
    fn endpoint(&self) -> &Endpoint {
        &self.server.endpoints()[0]
    }

    fn raw(&self) -> TcpStream {
        let stream = TcpStream::connect(self.endpoint().to_string()).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream
    }

    /// A connection that has greeted, and then does what the test does.
    fn greeted(&self) -> TcpStream {
        let mut stream = self.raw();
        stream.write_all(&encode_message(Kind::Hello as u16, 0, 1, &Hello::default(), 0)).unwrap();
        let (header, _) = frame_of(&mut stream);
        assert_eq!((header.request_id, header.flags), (1, FLAG_REPLY));
        stream
    }

    /// Answers all that is asked, from one thread, until the server stops.
    fn answer_all(asked: std::sync::mpsc::Receiver<Asked>) {
        let answer = Bytes::from(vec![7; ANSWER_BYTES]);
        for (connection, frame) in asked {
            let payload = vec![Part::Bytes(answer.clone())];
            connection.reply(frame.header.kind, frame.header.request_id, Ok((Bytes::new(), payload)));
        }
    }
}

fn request(id: u64) -> Vec<u8> {
    encode_message(Kind::GetStatus as u16, 0, id, &GetStatus {}, 0)
}

/// The next frame that is no keepalive frame, without its payload.
fn frame_of(stream: &mut TcpStream) -> (FrameHeader, Vec<u8>) {
    let mut raw = [0; HEADER_BYTES];
    stream.read_exact(&mut raw).unwrap();
    let header = FrameHeader::decode(&raw).unwrap();
    if (header.request_id, header.flags) == (NO_REQUEST_ID, FLAG_REPLY) {
        return frame_of(stream);
    }
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).unwrap();
    (header, body)
}

/// The error by which the server refuses the connection; afterwards it ends.
fn refusal(stream: &mut TcpStream) -> Error {
    let (header, body) = frame_of(stream);
    assert_eq!((header.request_id, header.flags), (0, FLAG_REPLY | FLAG_ERROR));
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "more follows the refusal");
    prost::Message::decode(&body[..]).unwrap()
}

fn dialer(role: Role) -> Dialer {
    let hello = Hello { role: role as i32, ..Hello::default() };
    Dialer::new(hello, Arc::new(NoService), BufferPool::new(0))
}

/// Waits until the peer that does not read has been dropped.
fn ended(stream: &mut TcpStream) {
    let until = Instant::now() + WAIT;
    let mut sink = vec![0; 1 << 20];
    while !matches!(stream.read(&mut sink), Ok(0) | Err(_)) {
        assert!(Instant::now() < until, "the connection goes on");
    }
}

/// One thread answers everybody. A peer that leaves its answers unread must not hold it.
#[test]
fn a_peer_that_does_not_read_delays_no_other() {
    let Rig { server, asked } = rig(Limits { outstanding_bytes: 1 << 30, ..Limits::default() });
    let rig = Rig { server, asked: channel().1 };
    let answering = std::thread::spawn(move || Rig::answer_all(asked));
    let mut unread: Vec<TcpStream> = (0..4).map(|_| rig.greeted()).collect();
    for stream in &mut unread {
        (2..42).for_each(|id| stream.write_all(&request(id)).unwrap());
    }
    let other = dialer(Role::Client);
    let (_, payload) = other.call_wait(rig.endpoint(), &GetStatus {}, vec![], WAIT).unwrap();
    assert_eq!(payload.len(), ANSWER_BYTES);
    // Reading late is no fault: all answers come.
    for stream in &mut unread {
        for _ in 2..42 {
            let (header, _) = frame_of(stream);
            assert_eq!(header.payload_len as usize, ANSWER_BYTES);
            stream.read_exact(&mut vec![0; ANSWER_BYTES]).unwrap();
        }
    }
    drop((other, rig));
    answering.join().unwrap();
}

#[test]
fn a_peer_that_takes_nothing_for_long_is_dropped() {
    let Rig { server, asked } = rig(Limits { stall_ms: 300, ..Limits::default() });
    let rig = Rig { server, asked: channel().1 };
    std::thread::spawn(move || Rig::answer_all(asked));
    let mut unread = rig.greeted();
    (2..42).for_each(|id| unread.write_all(&request(id)).unwrap());
    let until = Instant::now() + WAIT;
    while rig.server.connection_count() > 0 {
        assert!(Instant::now() < until, "the connection goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    ended(&mut unread);
}

#[test]
fn a_peer_that_leaves_a_frame_unfinished_is_dropped() {
    let rig = rig(Limits { stall_ms: 300, ..Limits::default() });
    let mut half = rig.greeted();
    half.write_all(&request(2)[..HEADER_BYTES - 1]).unwrap();
    ended(&mut half);
    // A connection that is idle between frames stays.
    let mut idle = rig.greeted();
    std::thread::sleep(Duration::from_millis(900));
    idle.write_all(&request(2)).unwrap();
    let (connection, frame) = rig.asked.recv_timeout(WAIT).unwrap();
    connection.reply(frame.header.kind, frame.header.request_id, Ok((Bytes::new(), Vec::new())));
    assert_eq!(frame_of(&mut idle).0.request_id, 2);
}

/// Requests that wait for their answers, and answers that wait for their reader, bound what is read.
#[test]
fn requests_are_read_as_fast_as_their_answers_are_taken() {
    let rig = rig(Limits { outstanding_bytes: 4 * ANSWER_BYTES, ..Limits::default() });
    let mut stream = rig.greeted();
    let last = 4_002;
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || (2..last).for_each(|id| writer.write_all(&request(id)).unwrap()));
    let mut waiting = Vec::new();
    while let Ok(asked) = rig.asked.recv_timeout(Duration::from_millis(500)) {
        waiting.push(asked);
    }
    let taken = waiting.len();
    assert!(taken < 100, "{taken} of 4,000 requests were read before one was answered");
    let (mut answered, answer) = (0, Bytes::from(vec![7; ANSWER_BYTES / 64]));
    let mut sink = vec![0; answer.len()];
    while answered < last - 2 {
        let asked = waiting.pop().unwrap_or_else(|| rig.asked.recv_timeout(WAIT).unwrap());
        let (connection, frame) = asked;
        let payload = vec![Part::Bytes(answer.clone())];
        connection.reply(frame.header.kind, frame.header.request_id, Ok((Bytes::new(), payload)));
        frame_of(&mut stream);
        stream.read_exact(&mut sink).unwrap();
        answered += 1;
    }
    writing.join().unwrap();
}

/// Together the connections take no more than the server's budget: the one that has not read for longest goes.
#[test]
fn memory_for_all_peers_is_bounded() {
    let limits = Limits { total_bytes: 64 << 20, ..Limits::default() };
    let Rig { server, asked } = rig(limits);
    let rig = Rig { server, asked: channel().1 };
    std::thread::spawn(move || Rig::answer_all(asked));
    let mut unread: Vec<TcpStream> = (0..20).map(|_| rig.greeted()).collect();
    let other = dialer(Role::Client);
    let until = Instant::now() + WAIT;
    let mut id = 2;
    while rig.server.connection_count() > 20 - 5 {
        assert!(Instant::now() < until, "no connection was dropped, {} bytes wait", rig.server.outstanding_bytes());
        for stream in &mut unread {
            let _ = stream.write_all(&request(id));
        }
        id += 1;
        other.call_wait(rig.endpoint(), &GetStatus {}, vec![], WAIT).unwrap();
        // Each connection may have a few requests more than the budget allows; each alone could have 16 MiB.
        assert!(rig.server.outstanding_bytes() < 160 << 20, "{} bytes wait", rig.server.outstanding_bytes());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_id_that_is_in_use_is_refused() {
    let rig = rig(Limits::default());
    let mut stream = rig.greeted();
    stream.write_all(&request(9)).unwrap();
    stream.write_all(&request(9)).unwrap();
    assert!(refusal(&mut stream).message.contains("request 9"));
}

#[test]
fn little_is_accepted_before_the_greeting() {
    let impatient = rig(Limits { greeting_ms: 300, ..Limits::default() });
    let error = refusal(&mut impatient.raw());
    assert!(error.message.contains("300 ms"), "{error:?}");

    let rig = rig(Limits { client_payload_bytes: 1 << 20, ..Limits::default() });
    let head = |payload_len| encode_message(Kind::PutFragments as u16, 0, 1, &GetStatus {}, payload_len);
    let mut big = rig.raw();
    big.write_all(&head(1 << 20)).unwrap();
    // The refusal is read even by a peer that sends on.
    let mut sending = big.try_clone().unwrap();
    let sent = std::thread::spawn(move || while sending.write_all(&[0; 1 << 16]).is_ok() {});
    let error = refusal(&mut big);
    assert!(error.message.contains("before the greeting"), "{error:?}");
    sent.join().unwrap();
    // Afterwards the limit is the server's.
    let mut stream = rig.greeted();
    stream.write_all(&head((1 << 20) + 1)).unwrap();
    assert!(refusal(&mut stream).message.contains("payload"));
}

#[test]
fn idle_connections_that_do_not_greet_keep_nobody_out() {
    let rig = rig(Limits { greeting: 8, ..Limits::default() });
    let mut idle: Vec<TcpStream> = (0..50).map(|_| rig.raw()).collect();
    let mut late = rig.greeted();
    assert!(refusal(&mut idle[0]).message.contains("8 connections"));
    late.write_all(&request(2)).unwrap();
    rig.asked.recv_timeout(WAIT).unwrap();
}

#[test]
fn each_role_has_its_own_share() {
    let rig = rig(Limits { clients: 2, nodes: 1, ..Limits::default() });
    let status = |of: &Dialer| {
        let (sender, answer) = channel();
        let callback = Box::new(move |result| sender.send(result).unwrap());
        of.call(rig.endpoint(), Kind::GetStatus, Bytes::new(), vec![], WAIT, callback);
        loop {
            if let Ok((connection, frame)) = rig.asked.try_recv() {
                connection.reply(frame.header.kind, frame.header.request_id, Ok((Bytes::new(), Vec::new())));
            }
            if let Ok(result) = answer.recv_timeout(Duration::from_millis(10)) {
                return result.map(drop);
            }
        }
    };
    let clients = [dialer(Role::Client), dialer(Role::Unknown)];
    clients.iter().for_each(|client| status(client).unwrap());
    let third = dialer(Role::Client);
    let error = status(&third).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message.contains("2 clients") && error.message.contains("max_client_connections"), "{error:?}");
    let node = dialer(Role::Node);
    status(&node).unwrap();
    status(&dialer(Role::Manager)).unwrap();
    assert!(status(&dialer(Role::Node)).unwrap_err().message.contains("max_node_connections"));
    // A place that becomes free is given away.
    clients[0].close();
    let until = Instant::now() + WAIT;
    while status(&third).is_err() {
        assert!(Instant::now() < until, "the place stays taken");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Both sides say so, whichever of them is newer.
#[test]
fn another_frame_version_is_an_error_that_names_both() {
    let rig = rig(Limits::default());
    let mut newer = request(1);
    newer[4] = 9;
    // What follows the version is of another layout, perhaps shorter.
    let mut stream = rig.raw();
    stream.write_all(&newer[..5]).unwrap();
    let error = refusal(&mut stream);
    assert_eq!(error.code(), Code::ProtocolVersion);
    assert!(error.message.contains("version 9") && error.message.contains("speaks 1"), "{error:?}");

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    let newer_server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        let mut reply = encode_message(Kind::Hello as u16, FLAG_REPLY | FLAG_ERROR, 0, &Error::default(), 0);
        reply[4] = 9;
        stream.write_all(&reply).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let client = dialer(Role::Client);
    let error = client.call_wait(&endpoint, &GetStatus {}, vec![], WAIT).unwrap_err();
    assert_eq!(error.code(), Code::ProtocolVersion);
    assert!(error.message.contains("version 9") && error.message.contains("speaks 1"), "{error:?}");
    newer_server.join().unwrap();
}
