//! The listening side: TCP and Unix sockets, a thread per connection, limits for what peers take.

use crate::buffer::BufferPool;
use crate::connection::{Connection, Service};
use crate::endpoint::{Endpoint, Stream};
use crate::limits::{Admissions, Limits};
use socket2::Socket;
use std::io;
use std::net::{Shutdown, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tessera_wire::Frame;
use tessera_wire::frame::FrameHeader;
use thiserror::Error;

/// Why a server could not start.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The address is taken, not of this host, or not allowed.
    #[error("cannot listen on {endpoint}: {source}; choose another address, or stop the process that uses it")]
    Bind {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        source: io::Error,
    },
    /// A running daemon serves the Unix socket.
    #[error("cannot listen on {endpoint}: a running daemon serves it; stop that first")]
    Taken {
        /// Where.
        endpoint: Endpoint,
    },
}

struct Shared {
    service: Arc<dyn Service>,
    pool: BufferPool,
    admissions: Arc<Admissions>,
    stopping: AtomicBool,
}

/// A running server; stops when dropped.
pub struct Server {
    shared: Arc<Shared>,
    endpoints: Vec<Endpoint>,
    listeners: Vec<Arc<Socket>>,
    /// The files of its Unix sockets.
    sockets: Vec<SocketFile>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens on all of `endpoints` (port 0: any; see [`Server::endpoints`]) and serves `service` within `limits`.
    ///
    /// # Errors
    /// The first endpoint that cannot be bound.
    pub fn start(
        endpoints: &[Endpoint],
        service: Arc<dyn Service>,
        pool: BufferPool,
        limits: Limits,
    ) -> Result<Server, ServerError> {
        let (admissions, stopping) = (Admissions::new(limits), AtomicBool::new(false));
        let shared = Arc::new(Shared { service, pool, admissions, stopping });
        let mut server =
            Server { shared, endpoints: Vec::new(), listeners: Vec::new(), sockets: Vec::new(), threads: Vec::new() };
        for endpoint in endpoints {
            let bind_error = |source| ServerError::Bind { endpoint: endpoint.clone(), source };
            let (listener, bound) = listen(endpoint)?;
            server.sockets.extend(SocketFile::of(endpoint));
            let (shared, listener) = (server.shared.clone(), Arc::new(listener));
            server.listeners.push(listener.clone());
            let thread =
                std::thread::Builder::new().name("accept".into()).spawn(move || accept_loop(&shared, &listener));
            server.threads.push(thread.map_err(bind_error)?);
            server.endpoints.push(bound);
        }
        Ok(server)
    }

    /// The endpoints it listens on, with the ports that the system chose.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The open connection of this number.
    pub fn connection(&self, id: u64) -> Option<Arc<Connection>> {
        self.shared.admissions.connection(id)
    }

    /// Open connections.
    pub fn connection_count(&self) -> usize {
        self.shared.admissions.connections().len()
    }

    /// Bytes of requests without an answer and of answers that were not sent, of all connections.
    pub fn outstanding_bytes(&self) -> usize {
        self.shared.admissions.outstanding_bytes()
    }

    /// Stops listening and closes every connection.
    pub fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        for listener in self.listeners.drain(..) {
            // Wakes the accepting thread, even if the socket's file is gone.
            let _ = listener.shutdown(Shutdown::Both);
        }
        self.sockets.drain(..).for_each(SocketFile::remove);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for connection in self.shared.admissions.connections() {
            connection.close();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Listens on each of `endpoints` for a moment: a daemon that cannot be started leaves nothing behind.
///
/// # Errors
/// The first endpoint that cannot be bound.
pub fn probe(endpoints: &[Endpoint]) -> Result<(), ServerError> {
    for endpoint in endpoints {
        let listening = listen(endpoint)?;
        SocketFile::of(endpoint).into_iter().for_each(SocketFile::remove);
        drop(listening);
    }
    Ok(())
}

/// The file of a Unix socket that this process made, by device and inode: another daemon may have made one of that name since.
struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    fn of(endpoint: &Endpoint) -> Option<SocketFile> {
        let Endpoint::Unix(path) = endpoint else { return None };
        let meta = std::fs::symlink_metadata(path).ok()?;
        Some(SocketFile { path: path.clone(), id: (meta.dev(), meta.ino()) })
    }

    fn remove(self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn listen(endpoint: &Endpoint) -> Result<(Socket, Endpoint), ServerError> {
    let bind_error = |source| ServerError::Bind { endpoint: endpoint.clone(), source };
    match endpoint {
        Endpoint::Tcp(address) => {
            let listener = TcpListener::bind(address).map_err(bind_error)?;
            let bound = listener.local_addr().map_err(bind_error)?.to_string();
            Ok((listener.into(), Endpoint::Tcp(bound)))
        }
        Endpoint::Unix(path) => {
            remove_stale_socket(endpoint, path)?;
            let listener = UnixListener::bind(path).map_err(bind_error)?;
            Ok((listener.into(), endpoint.clone()))
        }
        Endpoint::Near { .. } => {
            let message = "it is for connecting, not for listening; give the socket or the address";
            Err(bind_error(io::Error::new(io::ErrorKind::InvalidInput, message)))
        }
    }
}

/// Removes a socket file that a killed daemon left; fails if a daemon answers on it.
fn remove_stale_socket(endpoint: &Endpoint, path: &PathBuf) -> Result<(), ServerError> {
    match UnixStream::connect(path) {
        Ok(_) => Err(ServerError::Taken { endpoint: endpoint.clone() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| ServerError::Bind { endpoint: endpoint.clone(), source })
        }
        Err(_) => Ok(()),
    }
}

fn accept_loop(shared: &Arc<Shared>, listener: &Socket) {
    loop {
        let accepted = listener.accept();
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok((socket, _)) => admit(shared, Stream(socket)),
            Err(error) => {
                // Most likely no file descriptor is free; other threads close theirs meanwhile.
                tracing::warn!(%error, "cannot accept a connection");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn admit(shared: &Arc<Shared>, stream: Stream) {
    let tracked = Arc::new(Tracked { shared: Arc::downgrade(shared), inner: shared.service.clone() });
    let (pool, admissions) = (shared.pool.clone(), shared.admissions.clone());
    let start = || Connection::start_with(stream, tracked, pool, Some(admissions));
    if let Err(error) = shared.admissions.enter(start) {
        tracing::warn!(%error, "cannot start a connection");
    }
}

/// Forgets a connection when it closes, then tells the service.
struct Tracked {
    shared: std::sync::Weak<Shared>,
    inner: Arc<dyn Service>,
}

impl Service for Tracked {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        self.inner.request(connection, frame);
    }

    fn cost_bytes(&self, frame: &Frame) -> usize {
        self.inner.cost_bytes(frame)
    }

    fn pieces(&self, header: &FrameHeader, body: &[u8]) -> Vec<u32> {
        self.inner.pieces(header, body)
    }

    fn closing(&self) {
        self.inner.closing();
    }

    fn closed(&self, connection: &Arc<Connection>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.admissions.leave(connection.id());
        }
        self.inner.closed(connection);
    }
}
