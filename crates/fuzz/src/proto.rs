//! Changes of Protocol Buffers messages. The encoding tells numbers from byte strings, and that is enough: a string that can be
//! read as a message is changed as one.

use crate::mutate;
use tessera_disk::SplitMix64;

/// Messages are changed down to this depth.
const DEPTH_MAX: usize = 6;

#[derive(Clone, Debug)]
enum Value {
    Number(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Field {
    number: u64,
    value: Value,
}

/// Changes some field of an encoded message. Bytes that are no message are changed as bytes.
pub fn mutate(message: &mut Vec<u8>, rng: &mut SplitMix64) {
    at_depth(message, rng, DEPTH_MAX);
}

fn at_depth(message: &mut Vec<u8>, rng: &mut SplitMix64, depth: usize) {
    let Some(mut fields) = decode(message).filter(|_| depth > 0) else {
        return mutate::change(message, &[], rng);
    };
    let at = mutate::index(rng, fields.len());
    let before = message.len() as u64;
    match rng.below(12) {
        0 if !fields.is_empty() => _ = fields.remove(at),
        1 if !fields.is_empty() => fields.insert(at, fields[at].clone()),
        2 => fields.push(Field { number: 1 + rng.below(16), value: Value::Number(mutate::number(rng, 0, before)) }),
        3 if !fields.is_empty() => {
            let other = mutate::index(rng, fields.len());
            fields[at].value = fields[other].value.clone();
        }
        4 if !fields.is_empty() => {
            let copies = mutate::index(rng, 64);
            let field = fields[at].clone();
            fields.extend(std::iter::repeat_n(field, copies));
        }
        _ => match fields.get_mut(at).map(|field| &mut field.value) {
            Some(Value::Number(number)) => *number = mutate::number(rng, *number, before),
            Some(Value::Fixed(bytes)) => bytes.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8),
            Some(Value::Bytes(bytes)) => bytes_value(bytes, rng, depth),
            None => {}
        },
    }
    *message = encode(&fields);
}

fn bytes_value(bytes: &mut Vec<u8>, rng: &mut SplitMix64, depth: usize) {
    match rng.below(8) {
        0 => bytes.clear(),
        1 => bytes.resize(mutate::index(rng, 80), 0),
        2 => mutate::change(bytes, &[], rng),
        // Packed numbers.
        3 if !bytes.is_empty() => {
            let at = mutate::index(rng, bytes.len());
            let mut number = Vec::new();
            put_varint(&mut number, mutate::number(rng, u64::from(bytes[at]), 0));
            bytes.splice(at..=at, number);
        }
        _ => at_depth(bytes, rng, depth - 1),
    }
}

/// The fields of a message; none if the bytes are not one.
fn decode(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)?),
            1 => Value::Fixed(take(&mut bytes, 8)?),
            2 => {
                let len = usize::try_from(varint(&mut bytes)?).ok()?;
                Value::Bytes(take(&mut bytes, len)?)
            }
            5 => Value::Fixed(take(&mut bytes, 4)?),
            _ => return None,
        };
        fields.push(Field { number: tag >> 3, value });
    }
    fields.iter().all(|field| field.number > 0).then_some(fields)
}

fn encode(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for Field { number, value } in fields {
        let (kind, bytes) = match value {
            Value::Number(_) => (0, &[][..]),
            Value::Fixed(bytes) => (if bytes.len() == 8 { 1 } else { 5 }, &bytes[..]),
            Value::Bytes(bytes) => (2, &bytes[..]),
        };
        put_varint(&mut out, number << 3 | kind);
        match value {
            Value::Number(number) => put_varint(&mut out, *number),
            Value::Fixed(_) => {}
            Value::Bytes(bytes) => put_varint(&mut out, bytes.len() as u64),
        }
        out.extend_from_slice(bytes);
    }
    out
}

fn take(bytes: &mut &[u8], len: usize) -> Option<Vec<u8>> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken.to_vec())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use tessera_wire::meta::Commit;
    use tessera_wire::{Extent, meta::ChunkAck};

    #[test]
    fn a_message_returns_and_most_changes_of_it_are_messages() {
        let acks = vec![ChunkAck { chunk_id: 9, receipts: vec![1 << 50, 3], ..ChunkAck::default() }];
        let commit = Commit { op_id: 1 << 40, extents: vec![Extent::hole(3, 5)], acks, ..Commit::default() };
        let encoded = commit.encode_to_vec();
        assert_eq!(encode(&decode(&encoded).unwrap()), encoded);
        let mut rng = SplitMix64::new(1);
        let changed = |_| {
            let mut bytes = encoded.clone();
            mutate(&mut bytes, &mut rng);
            Commit::decode(&bytes[..]).is_ok_and(|other| other != commit)
        };
        let changed = (0..1000).map(changed).filter(|changed| *changed).count();
        assert!(changed > 500, "{changed} of 1000");
    }
}
