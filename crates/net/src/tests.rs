//! Real sockets on loopback and in a scratch directory.

use crate::dialer::NoService;
use crate::*;
use bytes::Bytes;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_wire::*;

/// Answers the greeting; echoes a put's payload as a get would; fails a request on demand.
struct Echo;

impl Service for Echo {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        let (kind, id) = (frame.header.kind, frame.header.request_id);
        let body = match Kind::from_number(kind) {
            Some(Kind::Hello) => admitted(connection, &frame),
            Some(Kind::GetFragments) => Ok(prost::Message::encode_to_vec(&data::GetFragmentsReply::default())),
            Some(Kind::GetStatus) => return,
            Some(Kind::ListXattrs) => Ok(vec![0; frame::MAX_BODY_BYTES as usize + 1]),
            _ => Err(Error::new(Code::Unsupported, "no")),
        };
        connection.reply(kind, id, body.map(|b| (b.into(), vec![Part::Bytes(frame.payload)])));
    }
}

/// Admits the peer; returns the reply.
fn admitted(connection: &Connection, frame: &Frame) -> Result<Vec<u8>, Error> {
    let hello = <Hello as prost::Message>::decode(&frame.body[..]).unwrap();
    connection.admit(hello.role())?;
    Ok(prost::Message::encode_to_vec(&HelloReply::default()))
}

fn dialer() -> Dialer {
    Dialer::new(Hello::default(), Arc::new(NoService), BufferPool::new(1 << 20))
}

fn server(endpoints: &[Endpoint]) -> Server {
    Server::start(endpoints, Arc::new(Echo), BufferPool::new(64 << 20), Limits::default()).unwrap()
}

const WAIT: Duration = Duration::from_secs(10);

#[test]
fn payloads_of_all_sizes_come_back_equal_over_both_families() {
    let scratch = tempfile::tempdir().unwrap();
    let server = server(&["127.0.0.1:0".parse().unwrap(), Endpoint::Unix(scratch.path().join("s"))]);
    let dialer = dialer();
    for endpoint in server.endpoints() {
        for len in [0, 1, 31, 4095, 4096, 16383, 16384, 16385, 70_000, 1 << 20, 5_000_001] {
            let sent: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let parts = sent.chunks(100_000).map(Bytes::copy_from_slice).collect();
            let (_, got) = dialer.call_wait(endpoint, &data::GetFragments::default(), parts, WAIT).unwrap();
            assert_eq!(got, sent, "{endpoint} {len}");
        }
    }
}

/// A process that sees the same files reaches a node over its socket; others, and those the socket refuses, use TCP.
#[test]
fn a_node_nearby_is_reached_over_its_socket_and_else_by_its_address() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("s");
    let server = server(&["127.0.0.1:0".parse().unwrap(), Endpoint::Unix(socket.clone())]);
    let node = NodeInfo {
        address: server.endpoints()[0].to_string(),
        unix_socket: socket.display().to_string(),
        machine: machine(),
        ..NodeInfo::default()
    };
    assert!(!machine().is_empty());
    let reach = |endpoint: &Endpoint| {
        let stream = Stream::connect(endpoint, WAIT).unwrap();
        stream.is_unix()
    };
    assert!(reach(&Endpoint::to_node(&node, &machine())));
    assert!(!reach(&Endpoint::to_node(&node, "another")) && !reach(&Endpoint::to_node(&node, "")));
    assert!(!reach(&Endpoint::to_node(&NodeInfo { machine: String::new(), ..node.clone() }, "")));
    let gone = NodeInfo { unix_socket: scratch.path().join("gone").display().to_string(), ..node };
    assert!(!reach(&Endpoint::to_node(&gone, &machine())));
}

/// Answers with the checksums it got; takes the payload's pieces from the body, four bytes each.
struct Sums;

impl Service for Sums {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        let sums: Vec<u8> = frame.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let body = match frame.header.kind == Kind::Hello as u16 {
            true => admitted(connection, &frame).unwrap().into(),
            false => Bytes::new(),
        };
        connection.reply(frame.header.kind, frame.header.request_id, Ok((body, vec![Part::Bytes(sums.into())])));
    }

    fn pieces(&self, _: &tessera_wire::frame::FrameHeader, body: &[u8]) -> Vec<u32> {
        let put = <data::PutFragments as prost::Message>::decode(body).unwrap_or_default();
        put.items.iter().map(|item| item.len_bytes).collect()
    }
}

#[test]
fn pieces_of_a_long_payload_are_summed_as_they_come_in() {
    let server =
        Server::start(&["127.0.0.1:0".parse().unwrap()], Arc::new(Sums), BufferPool::new(1 << 20), Limits::default())
            .unwrap();
    let (dialer, endpoint) = (dialer(), &server.endpoints()[0]);
    let ask = |lens: &[u32], payload_len: usize| {
        let payload: Vec<u8> = (0..payload_len).map(|i| (i * 7 % 251) as u8).collect();
        let items = lens.iter().map(|len_bytes| data::PutItem { len_bytes: *len_bytes, ..Default::default() });
        let put = data::PutFragments { items: items.collect(), ..Default::default() };
        let (_, sums) = dialer.call_wait(endpoint, &put, vec![payload.clone().into()], WAIT).unwrap();
        (sums, payload)
    };
    for lens in [&[1 << 20][..], &[300_000, 0, 1, 131_073, 5], &[65_536, 65_536]] {
        let (sums, payload) = ask(lens, lens.iter().sum::<u32>() as usize);
        let mut rest = &payload[..];
        let expected = lens.iter().flat_map(|len| {
            let (piece, behind) = rest.split_at(*len as usize);
            rest = behind;
            tessera_accel::checksum::crc32c(piece).to_le_bytes()
        });
        assert_eq!(sums, expected.collect::<Vec<u8>>(), "{lens:?}");
    }
    // Lengths that do not add up, and short payloads: received, but not summed.
    assert_eq!(ask(&[300_000], 300_001).0, Bytes::new());
    assert_eq!(ask(&[u32::MAX, 1], 100_000).0, Bytes::new());
    assert_eq!(ask(&[100], 100).0, Bytes::new());
}

#[test]
fn many_threads_share_one_connection_and_each_gets_its_own_answer() {
    let server = server(&["127.0.0.1:0".parse().unwrap()]);
    let (dialer, endpoint) = (dialer(), &server.endpoints()[0]);
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let dialer = &dialer;
            scope.spawn(move || {
                for round in 0..200usize {
                    let sent = Bytes::from(vec![thread ^ round as u8; 1 + round * 37]);
                    let (_, got) =
                        dialer.call_wait(endpoint, &data::GetFragments::default(), vec![sent.clone()], WAIT).unwrap();
                    assert_eq!(got, sent);
                }
            });
        }
    });
}

/// A core sends its next request from the callback of the last one.
#[test]
fn a_callback_may_call_again() {
    let server = server(&["127.0.0.1:0".parse().unwrap()]);
    let (dialer, endpoint) = (dialer(), server.endpoints()[0].clone());
    let (sender, answered) = std::sync::mpsc::channel();
    let (again, there) = (dialer.clone(), endpoint.clone());
    let last = Box::new(move |result: Result<_, Error>| sender.send(result.is_ok()).unwrap());
    let get = |dialer: &Dialer, endpoint: &Endpoint, callback| {
        dialer.call(endpoint, Kind::GetFragments, Bytes::new(), vec![], WAIT, callback);
    };
    get(&dialer, &endpoint, Box::new(move |_| get(&again, &there, last)));
    assert_eq!(answered.recv_timeout(WAIT), Ok(true));
}

#[test]
fn errors_timeouts_and_dead_peers_are_answers() {
    let mut server = server(&["127.0.0.1:0".parse().unwrap()]);
    let (dialer, endpoint) = (dialer(), server.endpoints()[0].clone());
    let refused = dialer.call_wait(&endpoint, &meta::Commit::default(), vec![], WAIT).unwrap_err();
    assert_eq!(refused.code(), Code::Unsupported);
    let late =
        dialer.call_wait(&endpoint, &meta::GetStatus::default(), vec![], Duration::from_millis(150)).unwrap_err();
    assert_eq!(late.code(), Code::Timeout);
    let long = dialer.call_wait(&endpoint, &meta::ListXattrs::default(), vec![], WAIT).unwrap_err();
    assert_eq!(long.code(), Code::Internal, "the answer has a byte more than a frame takes");
    server.stop();
    let gone = dialer.call_wait(&endpoint, &meta::Commit::default(), vec![], WAIT).unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable);
}

/// A connection's thread that waits for long, because nothing was due, ends a call in time that begins meanwhile.
#[test]
fn a_short_call_on_an_idle_connection_ends_in_time() {
    let server = server(&["127.0.0.1:0".parse().unwrap()]);
    let endpoint = server.endpoints()[0].clone();
    let least = (0..3).map(|_| {
        let dialer = dialer();
        dialer.call_wait(&endpoint, &data::GetFragments::default(), Vec::new(), WAIT).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        let timeout = Duration::from_millis(150);
        let late = dialer.call_wait(&endpoint, &meta::GetStatus::default(), Vec::new(), timeout).unwrap_err();
        assert_eq!(late.code(), Code::Timeout);
        began.elapsed()
    });
    // A busy machine may be late once.
    let least = least.min().unwrap();
    assert!(least < Duration::from_millis(600), "after {least:?}");
}

/// Each call has one result, also those whose connection is still being opened, and a callback may call again.
#[test]
fn closing_a_dialer_ends_every_call() {
    let server = server(&["127.0.0.1:0".parse().unwrap()]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (dialer, endpoint) = (dialer(), server.endpoints()[0].clone());
    dialer.call_wait(&endpoint, &data::GetFragments::default(), Vec::new(), WAIT).unwrap();
    let opening = Endpoint::Tcp(silent.local_addr().unwrap().to_string());
    let (sender, results) = std::sync::mpsc::channel();
    for to in [&endpoint, &opening] {
        let (sender, again, other) = (sender.clone(), dialer.clone(), opening.clone());
        let callback: Callback = Box::new(move |result| {
            again.call(&other, Kind::GetStatus, Bytes::new(), Vec::new(), WAIT, Box::new(|_| ()));
            sender.send(result.map(|_| ()).unwrap_err().code()).unwrap();
        });
        dialer.call(to, Kind::GetStatus, Bytes::new(), Vec::new(), WAIT, callback);
    }
    std::thread::spawn(move || dialer.close());
    for _ in 0..2 {
        assert_eq!(results.recv_timeout(WAIT), Ok(Code::Unavailable));
    }
}

/// Else a process that makes clients again and again ends with all threads and descriptors of two machines.
#[test]
fn connections_end_with_their_dialer() {
    let service = Arc::<Ends>::default();
    let server =
        Server::start(&["127.0.0.1:0".parse().unwrap()], service.clone(), BufferPool::new(0), Limits::default())
            .unwrap();
    let dialer = dialer();
    dialer.call_wait(&server.endpoints()[0], &Hello::default(), Vec::new(), WAIT).unwrap();
    let other = dialer.clone();
    drop(dialer);
    other.call_wait(&server.endpoints()[0], &Hello::default(), Vec::new(), WAIT).unwrap();
    assert_eq!(service.after(0), Vec::<&str>::new(), "somebody has it still");
    drop(other);
    assert_eq!(service.after(2), ["closing", "ended by peer"]);
}

#[test]
fn a_server_stops_even_if_the_file_of_its_socket_is_gone() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("s");
    let mut server = server(&["127.0.0.1:0".parse().unwrap(), Endpoint::Unix(socket.clone())]);
    // Lets both threads block in accept.
    std::thread::sleep(Duration::from_millis(100));
    std::fs::remove_file(&socket).unwrap();
    let (sender, stopped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        server.stop();
        sender.send(()).unwrap();
    });
    stopped.recv_timeout(Duration::from_secs(5)).expect("stop waits for a thread that accepts");
}

#[test]
fn a_server_leaves_the_socket_of_a_later_one_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("s");
    let mut first = server(&[Endpoint::Unix(socket.clone())]);
    std::fs::remove_file(&socket).unwrap();
    let mut second = server(&[Endpoint::Unix(socket.clone())]);
    first.stop();
    assert!(socket.exists(), "the later server's file is gone");
    second.stop();
    assert!(!socket.exists());
}

#[test]
fn a_unix_endpoint_has_a_path() {
    assert!("unix:".parse::<Endpoint>().unwrap_err().contains("no path"));
    assert_eq!("unix:s".parse(), Ok(Endpoint::Unix("s".into())));
}

#[test]
fn garbage_closes_that_connection_and_no_other() {
    let server = server(&["127.0.0.1:0".parse().unwrap()]);
    let Endpoint::Tcp(address) = server.endpoints()[0].clone() else { unreachable!() };
    let good = frame::encode_message(Kind::GetFragments as u16, 0, 7, &data::GetFragments::default(), 0);
    for flip in (0..good.len()).filter(|flip| *flip != frame::MAGIC.len()) {
        let mut bad = good.clone();
        bad[flip] ^= 0x40;
        let mut raw = std::net::TcpStream::connect(&address).unwrap();
        raw.write_all(&bad).unwrap();
        let mut answer = Vec::new();
        raw.read_to_end(&mut answer).unwrap_or_default();
        assert!(answer.is_empty(), "byte {flip}: a damaged frame was answered");
    }
    let dialer = dialer();
    dialer.call_wait(&server.endpoints()[0], &data::GetFragments::default(), vec![], WAIT).unwrap();
}

#[test]
fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
    let scratch = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(scratch.path().join("s"));
    drop(std::os::unix::net::UnixListener::bind(scratch.path().join("s")).unwrap());
    let _live = server(std::slice::from_ref(&endpoint));
    let second = Server::start(&[endpoint], Arc::new(Echo), BufferPool::new(0), Limits::default());
    assert!(matches!(second, Err(ServerError::Taken { .. })));
}

#[test]
fn a_file_is_sent_as_part_of_a_payload() {
    struct FromFile(Arc<std::fs::File>);
    impl Service for FromFile {
        fn request(&self, connection: &Arc<Connection>, frame: Frame) {
            let range = FileRange { file: self.0.clone(), offset: 3, len: 100_000 };
            let payload = match Kind::from_number(frame.header.kind) {
                Some(Kind::Hello) => {
                    admitted(connection, &frame).unwrap();
                    vec![]
                }
                _ => vec![
                    Part::Bytes(Bytes::from_static(b"head")),
                    Part::File(range),
                    Part::Bytes(Bytes::from_static(b"tail")),
                ],
            };
            connection.reply(frame.header.kind, frame.header.request_id, Ok((Bytes::new(), payload)));
        }
    }
    let content: Vec<u8> = (0..200_000u32).map(|i| (i % 241) as u8).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content).unwrap();
    let server = Server::start(
        &["127.0.0.1:0".parse().unwrap()],
        Arc::new(FromFile(Arc::new(file))),
        BufferPool::new(0),
        Limits::default(),
    )
    .unwrap();
    let (_, got) = dialer().call_wait(&server.endpoints()[0], &data::GetFragments::default(), vec![], WAIT).unwrap();
    assert_eq!(got, [b"head", &content[3..100_003], b"tail"].concat());
}

/// Records the events of connections.
#[derive(Default)]
struct Ends(parking_lot::Mutex<Vec<&'static str>>);

impl Service for Ends {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        match Kind::from_number(frame.header.kind) {
            Some(Kind::Hello) => {
                let reply = admitted(connection, &frame).map(|reply| (reply.into(), Vec::new()));
                connection.reply(frame.header.kind, frame.header.request_id, reply);
            }
            _ => connection.close(),
        }
    }
    fn closing(&self) {
        self.0.lock().push("closing");
    }
    fn closed(&self, connection: &Arc<Connection>) {
        self.0.lock().push(match connection.end() {
            End::ByPeer => "ended by peer",
            End::Reset => "reset",
            End::Broken => "not by peer",
        });
    }
}

impl Ends {
    fn after(&self, count: usize) -> Vec<&'static str> {
        let deadline = std::time::Instant::now() + WAIT;
        while self.0.lock().len() < count && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        self.0.lock().clone()
    }
}

/// `closing` returns before the peer sees the end; `end` tells which side ended the connection.
#[test]
fn an_end_is_announced_first_and_is_known_to_be_the_peers_or_not() {
    let greeted = |service: &Arc<Ends>| {
        let server = Server::start(
            &["127.0.0.1:0".parse().unwrap()],
            service.clone(),
            BufferPool::new(1 << 20),
            Limits::default(),
        )
        .unwrap();
        let mine = Arc::<Ends>::default();
        let dialer = Dialer::new(Hello::default(), mine.clone(), BufferPool::new(1 << 20));
        (server, mine, dialer)
    };
    // This side closes.
    let service = Arc::<Ends>::default();
    let (server, mine, dialer) = greeted(&service);
    let _ = dialer.call_wait(&server.endpoints()[0], &Hello::default(), vec![], WAIT).unwrap();
    dialer.close();
    assert_eq!(service.after(2), ["closing", "ended by peer"]);
    assert_eq!(mine.0.lock()[0], "closing", "before the server could see the end");
    assert_eq!(mine.after(2), ["closing", "not by peer"]);

    // The server closes.
    let service = Arc::<Ends>::default();
    let (server, mine, dialer) = greeted(&service);
    let _ = dialer.call_wait(&server.endpoints()[0], &meta::GetStatus {}, vec![], WAIT).unwrap_err();
    assert_eq!(service.after(2), ["closing", "not by peer"]);
    assert_eq!(mine.after(2), ["closing", "ended by peer"]);

    // The peer's process ends in the middle of a frame.
    let service = Arc::<Ends>::default();
    let (server, ..) = greeted(&service);
    let stream = Stream::connect(&server.endpoints()[0], WAIT).unwrap();
    let mut tcp = stream.0;
    tcp.write_all(b"TSR").unwrap();
    drop(tcp);
    assert_eq!(service.after(2), ["closing", "ended by peer"]);
}

/// The kernel resets the connection of a process that is killed while answers for it are on their way or unread.
#[test]
fn a_peer_that_is_killed_before_it_has_read_everything_resets_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let unix = Endpoint::Unix(directory.path().join("s"));
    for endpoint in ["127.0.0.1:0".parse().unwrap(), unix] {
        for (sent, is_answered) in [(&b""[..], true), (b"TSR", true), (b"", false)] {
            let service = Arc::<Ends>::default();
            let server = Server::start(
                std::slice::from_ref(&endpoint),
                service.clone(),
                BufferPool::new(1 << 20),
                Limits::default(),
            )
            .unwrap();
            let Stream(mut socket) = Stream::connect(&server.endpoints()[0], WAIT).unwrap();
            if is_answered {
                let hello = frame::encode_message(Kind::Hello as u16, 0, 1, &Hello::default(), 0);
                socket.write_all(&hello).unwrap();
                // The answer has arrived and is unread.
                socket.peek(&mut [std::mem::MaybeUninit::uninit()]).unwrap();
            } else {
                socket.set_linger(Some(Duration::ZERO)).unwrap();
            }
            socket.write_all(sent).unwrap();
            drop(socket);
            let end = if !is_answered && matches!(endpoint, Endpoint::Unix(_)) { "ended by peer" } else { "reset" };
            assert_eq!(service.after(2), ["closing", end], "{endpoint} {sent:?} {is_answered}");
        }
    }
}

/// Tells when its first request arrives, and then waits until it may go on.
struct Waits {
    asked: std::sync::mpsc::SyncSender<Arc<Connection>>,
    goes_on: parking_lot::Mutex<std::sync::mpsc::Receiver<()>>,
    end: std::sync::mpsc::SyncSender<End>,
}

impl Service for Waits {
    fn request(&self, connection: &Arc<Connection>, _: Frame) {
        self.asked.send(connection.clone()).unwrap();
        self.goes_on.lock().recv().unwrap();
    }
    fn closed(&self, connection: &Arc<Connection>) {
        self.end.send(connection.end()).unwrap();
    }
}

/// The end that a connection notes while its thread is busy; `end_it` ends the peer's side.
fn end_while_busy(end_it: impl FnOnce(&Connection, socket2::Socket)) -> End {
    let (asked, first) = std::sync::mpsc::sync_channel(1);
    let (go_on, goes_on) = std::sync::mpsc::sync_channel(1);
    let (end, ended) = std::sync::mpsc::sync_channel(1);
    let service = Arc::new(Waits { asked, goes_on: parking_lot::Mutex::new(goes_on), end });
    let address = ["127.0.0.1:0".parse().unwrap()];
    let server = Server::start(&address, service, BufferPool::new(1 << 20), Limits::default()).unwrap();
    let Stream(mut socket) = Stream::connect(&server.endpoints()[0], WAIT).unwrap();
    socket.write_all(&frame::encode_message(Kind::Hello as u16, 0, 1, &Hello::default(), 0)).unwrap();
    end_it(&first.recv_timeout(WAIT).unwrap(), socket);
    go_on.send(()).unwrap();
    ended.recv_timeout(WAIT).unwrap()
}

fn is_hung_up(connection: &Connection) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::new(&connection.stream.0, PollFlags::empty())];
    poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap();
    fds[0].revents().contains(PollFlags::HUP)
}

/// The socket gives its error once. A thread that writes may have taken it before the connection's thread reads: after a reset, the
/// peer may live and use its leases (P7).
#[test]
fn a_reset_whose_error_another_thread_took_is_no_end_by_the_peer() {
    let deadline = std::time::Instant::now() + WAIT;
    let wait_until = |is_there: &dyn Fn() -> bool| {
        while !is_there() {
            assert!(std::time::Instant::now() < deadline, "no reset came");
            std::thread::yield_now();
        }
    };
    let was_reset = end_while_busy(|connection, socket| {
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        drop(socket);
        wait_until(&|| connection.stream.0.take_error().unwrap().is_some());
    });
    assert_eq!(was_reset, End::Reset);

    // The peer has closed its socket, and its kernel refuses what comes then.
    let was_closed = end_while_busy(|connection, socket| {
        drop(socket);
        connection.reply(Kind::Hello as u16, 1, Ok((bytes::Bytes::from_static(b"late"), Vec::new())));
        wait_until(&|| is_hung_up(connection));
    });
    assert_eq!(was_closed, End::ByPeer);
}
