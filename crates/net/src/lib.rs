//! Sockets under the wire (being written).
