//! Records as bytes, for persisted partitions.

/// A record that can be persisted. Numbers are little-endian; what has no fixed length begins with it.
pub trait Record: Sized {
    /// Appends the record to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Takes a record from the front of `bytes`; `None` if it is malformed.
    fn decode(bytes: &mut &[u8]) -> Option<Self>;
}

macro_rules! number {
    ($($number:ty),*) => {$(
        impl Record for $number {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                let (first, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(<$number>::from_le_bytes(*first))
            }
        }
    )*};
}

number!(u8, u32, u64, i32, i64, f32, f64);

impl Record for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        out.extend_from_slice(self);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let len = usize::try_from(u64::decode(bytes)?).ok()?;
        let (first, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        Some(first.to_vec())
    }
}

impl Record for String {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        String::from_utf8(Vec::decode(bytes)?).ok()
    }
}

impl<A: Record, B: Record> Record for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        Some((A::decode(bytes)?, B::decode(bytes)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_come_back_and_cut_ones_do_not(text: String, number: u64, bits: u64, raw: Vec<u8>) {
            let record = ((text, number), (f64::from_bits(bits).abs(), raw));
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let mut rest = &bytes[..];
            type Pair = ((String, u64), (f64, Vec<u8>));
            let back = Pair::decode(&mut rest).unwrap();
            prop_assert!(rest.is_empty());
            prop_assert_eq!(&back.0, &record.0);
            prop_assert_eq!(back.1.0.to_bits(), record.1.0.to_bits());
            prop_assert_eq!(&back.1.1, &record.1.1);
            prop_assert!(Pair::decode(&mut &bytes[..bytes.len() - 1]).is_none());
        }
    }
}
