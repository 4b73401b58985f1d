//! Calls and answers as the sans-io cores hand them out and take them in. Plain data: the shells (and the
//! simulator) carry them.

use crate::{Error, Kind, Request, frame};
use bytes::Bytes;

/// Whom a core wants to talk to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// The manager this core was configured with.
    Manager,
    /// A node by id; its address is in the cluster map.
    Node(u64),
    /// Whoever listens at `HOST:PORT` (restoring a manager, before there is a map).
    Address(String),
    /// Whoever opened connection number n (the manager recalling a lease).
    Connection(u64),
}

/// A request on its way out.
#[derive(Debug, Clone)]
pub struct Call {
    /// To whom.
    pub peer: Peer,
    /// Chosen by the core; comes back with the [`Answer`].
    pub token: u64,
    /// Kind of the message.
    pub kind: Kind,
    /// The encoded message.
    pub body: Bytes,
    /// Raw bytes to follow, gathered in order.
    pub payload: Vec<Bytes>,
    /// Give up after so many milliseconds; the answer is then [`crate::Code::Timeout`].
    pub timeout_ms: u64,
}

impl Call {
    /// A call of request `message`.
    pub fn new<R: Request>(peer: Peer, token: u64, message: &R, payload: Vec<Bytes>, timeout_ms: u64) -> Self {
        Call { peer, token, kind: R::KIND, body: message.encode_to_vec().into(), payload, timeout_ms }
    }
}

/// What came back for a [`Call`]: exactly one per call, transport failures included
/// ([`crate::Code::Unavailable`] when the peer could not be reached or the connection broke).
#[derive(Debug, Clone)]
pub struct Answer {
    /// Of the call.
    pub token: u64,
    /// Encoded reply and payload, or the error.
    pub result: Result<(Bytes, Bytes), Error>,
}

impl Answer {
    /// Decodes the reply to request `R`, with its payload.
    pub fn decode<R: Request>(self) -> Result<(R::Reply, Bytes), Error> {
        let (body, payload) = self.result?;
        let reply = frame::decode_message::<R::Reply>(R::KIND as u16, &body)
            .map_err(|e| Error::new(crate::Code::Internal, e.to_string()))?;
        Ok((reply, payload))
    }
}
