//! Requests and answers as the sans-io cores emit and accept them. Shells, and the simulator, transport them.

use crate::{Error, Kind, Request, frame};
use bytes::Bytes;

/// Receiver of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// The manager this core was configured with.
    Manager,
    /// A node by id; its address is in the cluster map.
    Node(u64),
    /// The daemon at `HOST:PORT`: a manager that restores has no map yet.
    Address(String),
    /// The peer that opened this connection: the manager recalls leases so.
    Connection(u64),
}

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct Call {
    /// Receiver.
    pub peer: Peer,
    /// Chosen by the core; the [`Answer`] repeats it.
    pub token: u64,
    /// Kind of the message.
    pub kind: Kind,
    /// The encoded message.
    pub body: Bytes,
    /// The payload, in pieces.
    pub payload: Vec<Bytes>,
    /// Limit of the wait for the answer in milliseconds; then the answer is [`crate::Code::Timeout`].
    pub timeout_ms: u64,
}

impl Call {
    /// A call that sends `message`.
    pub fn new<R: Request>(peer: Peer, token: u64, message: &R, payload: Vec<Bytes>, timeout_ms: u64) -> Self {
        Call { peer, token, kind: R::KIND, body: message.encode_to_vec().into(), payload, timeout_ms }
    }
}

/// Answer to a [`Call`]. Each call gets exactly one; if the peer cannot be reached or the connection breaks, that is
/// [`crate::Code::Unavailable`].
#[derive(Debug, Clone)]
pub struct Answer {
    /// Token of the call.
    pub token: u64,
    /// Encoded reply and payload, or the error.
    pub result: Result<(Bytes, Bytes), Error>,
}

impl Answer {
    /// Decodes the reply to request `R`, with its payload.
    ///
    /// # Errors
    /// The error that the peer or the transport returned; [`crate::Code::Internal`] if the reply cannot be decoded.
    pub fn decode<R: Request>(self) -> Result<(R::Reply, Bytes), Error> {
        let (body, payload) = self.result?;
        let reply = frame::decode_message::<R::Reply>(R::KIND as u16, &body)
            .map_err(|e| Error::new(crate::Code::Internal, e.to_string()))?;
        Ok((reply, payload))
    }
}
