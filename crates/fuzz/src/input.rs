//! An input is a list of parts: files of a disk, messages of a connection. Each is preceded by its length in four bytes. Any bytes are
//! an input: a length that is too long takes what is there.

/// Limit of the parts; what follows is ignored.
const PARTS_MAX: usize = 64;

/// The parts of an input.
pub type Parts = Vec<Vec<u8>>;

/// Splits an input into its parts.
#[must_use]
pub fn split(mut input: &[u8]) -> Parts {
    let mut parts = Parts::new();
    while let Some((len, rest)) = input.split_first_chunk::<4>() {
        let len = (u32::from_le_bytes(*len) as usize).min(rest.len());
        let (part, rest) = rest.split_at(len);
        if parts.len() == PARTS_MAX {
            break;
        }
        parts.push(part.to_vec());
        input = rest;
    }
    parts
}

/// The input with these parts.
#[must_use]
pub fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    let one = |part: &Vec<u8>| [&(part.len() as u32).to_le_bytes(), &part[..]].concat();
    parts.iter().flat_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_return_and_any_bytes_are_an_input() {
        let parts = vec![b"one".to_vec(), vec![], b"three".to_vec()];
        assert_eq!(split(&join(&parts)), parts);
        assert_eq!(split(&[255; 6]), [vec![255; 2]]);
        assert_eq!(split(&[1]), Parts::new());
    }
}
