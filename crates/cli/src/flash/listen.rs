//! Where `serve` listens: a Unix socket or a TCP address.

use crate::exit::{At, Exit, Failure, Outcome, failure};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use rustix::net::{RecvFlags, recv};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A client is asked whether it lives after so much silence, then three times.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A listening socket.
pub enum Listener {
    /// A Unix socket.
    Unix(UnixSocket),
    /// A TCP socket.
    Tcp(TcpListener),
}

/// A connection.
pub enum Stream {
    /// Over a Unix socket.
    Unix(UnixStream),
    /// Over TCP.
    Tcp(TcpStream),
}

impl Listener {
    /// Listens at `unix:PATH` or `HOST:PORT`. A Unix socket that nothing listens at any more is replaced; it is its user's alone.
    ///
    /// # Errors
    /// The address is taken, or no address.
    pub fn bind(address: &str) -> Outcome<Listener> {
        match address.strip_prefix("unix:") {
            Some("") => Err(failure!(Exit::Usage, "--nbd unix: names no path; write unix:PATH")),
            Some(path) => bind_unix(Path::new(path)).map(Listener::Unix),
            None => {
                let failed = |e: io::Error| {
                    let usage = e.kind() == io::ErrorKind::InvalidInput;
                    let way_out = if usage { "write unix:PATH or HOST:PORT" } else { "name another address" };
                    let exit = if usage { Exit::Usage } else { Exit::Failed };
                    failure!(exit, "cannot listen at `{address}`: {e}; {way_out}")
                };
                TcpListener::bind(address).map(Listener::Tcp).map_err(failed)
            }
        }
    }

    /// The address as clients of NBD write it.
    pub fn uri(&self) -> String {
        match self {
            Listener::Unix(socket) => format!("nbd+unix:///?socket={}", socket.path.display()),
            Listener::Tcp(listener) => {
                format!("nbd://{}", listener.local_addr().map_or_else(|_| String::new(), |address| address.to_string()))
            }
        }
    }

    /// The path of a Unix socket.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Listener::Unix(socket) => Some(socket.path()),
            Listener::Tcp(_) => None,
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// The system's.
    pub fn accept(&self) -> Outcome<Stream> {
        match self {
            Listener::Unix(socket) => socket.accept().at(&socket.path).map(Stream::Unix),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().at("the socket")?;
                stream.set_nodelay(true).at("the socket")?;
                end_if_dead(&stream).map_err(io::Error::from).at("the socket")?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

/// A listening Unix socket; its file is gone with it, so that a server that cannot start leaves none.
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// The next connection.
    ///
    /// # Errors
    /// The system's.
    pub fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().map(|(stream, _)| stream)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Has the kernel ask a client that is silent whether it lives, so that a machine that is gone takes nobody's place for ever.
fn end_if_dead(stream: &TcpStream) -> Result<(), Errno> {
    set_tcp_keepidle(stream, KEEPALIVE)?;
    set_tcp_keepintvl(stream, KEEPALIVE / 3)?;
    set_tcp_keepcnt(stream, 3)?;
    set_socket_keepalive(stream, true)
}

/// Listens at a Unix socket, as [`Listener::bind`] does.
///
/// # Errors
/// The path is taken, or no socket can be there.
pub fn bind_unix(path: &Path) -> Outcome<UnixSocket> {
    // Of two servers that find a socket at which nobody listens, the second finds the one that the first has put there.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let one_at_a_time = File::open(parent).at(parent)?;
    flock(&one_at_a_time, FlockOperation::LockExclusive).map_err(io::Error::from).at(parent)?;
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // Connecting to a file that is no socket is refused as well.
            let is_socket = std::fs::symlink_metadata(path).at(path)?.file_type().is_socket();
            let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
            if !is_socket || !UnixStream::connect(path).is_err_and(refused) {
                let taken = if is_socket { "another server listens there" } else { "it is no socket" };
                return Err(failure!(
                    Exit::Conflict,
                    "cannot listen at {}: {taken}; name another path",
                    path.display()
                ));
            }
            std::fs::remove_file(path).at(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    };
    let listener = listener.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => {
            failure!(Exit::Usage, "cannot listen at {}: {error}; name a shorter path", path.display())
        }
        _ => Failure::io(path, &error),
    })?;
    let socket = UnixSocket { listener, path: path.into() };
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).at(path)?;
    Ok(socket)
}

impl Stream {
    /// Another handle of the connection.
    ///
    /// # Errors
    /// The system's.
    pub fn try_clone(&self) -> io::Result<Stream> {
        match self {
            Stream::Unix(stream) => stream.try_clone().map(Stream::Unix),
            Stream::Tcp(stream) => stream.try_clone().map(Stream::Tcp),
        }
    }

    /// Bounds how long a read or a write waits; none: without end.
    ///
    /// # Errors
    /// The system's.
    pub fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)),
            Stream::Tcp(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)),
        }
    }

    /// Whether a read would return at once: bytes have come, or the connection ended.
    pub fn has_input(&self) -> bool {
        let socket = match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        };
        let mut byte = [0; 1];
        recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT).err() != Some(Errno::AGAIN)
    }
}

/// A connection on which all that is asked for is to be there by a certain time.
pub struct Until<'a> {
    pub stream: &'a mut Stream,
    pub end: Instant,
}

impl Until<'_> {
    fn wait_no_longer(&self) -> io::Result<()> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.stream.set_timeout(Some(left))
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait_no_longer()?;
        self.stream.read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait_no_longer()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.flush(),
            Stream::Tcp(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn of_servers_that_start_together_where_one_was_killed_one_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        for _ in 0..50 {
            // What a killed server leaves.
            drop(UnixListener::bind(&path).unwrap());
            let together = Barrier::new(4);
            let bind = || {
                together.wait();
                bind_unix(&path).ok()
            };
            let bound: Vec<UnixSocket> = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(bind));
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(bound.len(), 1);
            assert!(UnixStream::connect(&path).is_ok(), "what is at the path listens");
            drop(bound);
            assert!(!path.exists());
        }
    }
}
