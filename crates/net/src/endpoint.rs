//! The address of a daemon, and the stream to it.

use socket2::{Domain, Socket, TcpKeepalive};
use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tessera_wire::NodeInfo;

/// Kernel buffer of a Unix socket in each direction, bytes. It holds one fragment, so sender and receiver need not
/// alternate, and the bytes are still in the cache when they are read (4 MiB costs half as much CPU again). TCP sizes
/// its own.
const UNIX_BUFFER_BYTES: usize = 256 << 10;
/// The kernel probes a TCP peer of which it heard nothing for this long, so that connections to hosts that are gone end.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// A TCP connection ends when the peer's kernel has confirmed neither data nor probes for this long.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);

/// An address: `HOST:PORT` or the path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// `HOST:PORT`.
    Tcp(String),
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// A daemon on this machine: its Unix socket, or its address if the socket refuses (permissions, another root
    /// directory). Only for connecting.
    Near {
        /// Path of its Unix socket.
        socket: PathBuf,
        /// `HOST:PORT`.
        address: String,
    },
}

/// Identifies the machine and the file tree that this process sees: two processes with the same, non-empty value
/// reach the same Unix socket by the same path. (Linux: the boot id and the mount namespace.)
pub fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mounts = std::fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    match (boot.trim(), mounts.to_str().unwrap_or_default()) {
        ("", _) | (_, "") => String::new(),
        (boot, mounts) => format!("{boot}/{mounts}"),
    }
}

impl Endpoint {
    /// The endpoint of a node for a process on `machine` ([`machine`]): its Unix socket if both see the same files.
    pub fn to_node(node: &NodeInfo, machine: &str) -> Endpoint {
        let near = !machine.is_empty() && node.machine == machine && !node.unix_socket.is_empty();
        match near {
            true => Endpoint::Near { socket: (&node.unix_socket).into(), address: node.address.clone() },
            false => Endpoint::Tcp(node.address.clone()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => f.write_str(address),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Near { socket, address } => write!(f, "unix:{} or {address}", socket.display()),
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = String;
    /// Parses `HOST:PORT` or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(format!("{text:?} has no path; write unix:PATH"));
            }
            return Ok(Endpoint::Unix(path.into()));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Endpoint::Tcp(text.to_string()))
            }
            _ => Err(format!("{text:?} is not an address; write HOST:PORT or unix:PATH")),
        }
    }
}

/// A connected stream socket of either family.
#[derive(Debug)]
pub struct Stream(pub(crate) Socket);

impl Stream {
    /// Connects, waiting at most `timeout` (for each address a name resolves to).
    ///
    /// # Errors
    /// No address accepts the connection in time, or the name does not resolve.
    pub fn connect(endpoint: &Endpoint, timeout: Duration) -> io::Result<Stream> {
        let unix = |path| UnixStream::connect(path).map(|stream| Stream(stream.into()));
        match endpoint {
            Endpoint::Unix(path) => unix(path),
            Endpoint::Tcp(address) => connect_tcp(address, timeout),
            Endpoint::Near { socket, address } => unix(socket).or_else(|_| connect_tcp(address, timeout)),
        }
    }

    pub(crate) fn is_unix(&self) -> bool {
        self.0.domain().is_ok_and(|domain| domain == Domain::UNIX)
    }

    /// Sets the options of every connection. The kernel may refuse buffer sizes and keepalive; that is not an error.
    pub(crate) fn tune(&self) -> io::Result<()> {
        self.0.set_nonblocking(true)?;
        if !self.is_unix() {
            let _ =
                self.0.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(PROBE_EVERY));
            let _ = self.0.set_tcp_user_timeout(Some(SILENCE_LIMIT));
            return self.0.set_tcp_nodelay(true);
        }
        let _ = self.0.set_send_buffer_size(UNIX_BUFFER_BYTES);
        let _ = self.0.set_recv_buffer_size(UNIX_BUFFER_BYTES);
        Ok(())
    }

    /// The peer's address, for logs.
    pub fn peer(&self) -> String {
        match self.0.peer_addr().ok().and_then(|address| address.as_socket()) {
            Some(address) => address.to_string(),
            None if self.is_unix() => "unix peer".into(),
            None => "tcp peer".into(),
        }
    }
}

fn connect_tcp(address: &str, timeout: Duration) -> io::Result<Stream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(Stream(stream.into())),
            Err(error) => last = error,
        }
    }
    Err(last)
}
