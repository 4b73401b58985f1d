//! Names of extended attributes: what the mount computes, what the store keeps, and what is refused.

use crate::errno::Errno;

/// An attribute of a file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrName<'a> {
    /// `user.tessera.location`: where each extent lies. Computed, read-only.
    Location,
    /// `user.tessera.state`: version, chunks and bytes. Computed, read-only.
    State,
    /// `user.tessera.mount`: state of the mount itself. Computed, read-only.
    Mount,
    /// A hint, or an attribute that a program set: the store keeps it.
    Stored(&'a str),
}

impl<'a> XattrName<'a> {
    /// Classifies a name.
    ///
    /// # Errors
    /// `EINVAL`: the name is not UTF-8, or nothing follows its prefix. `EOPNOTSUPP`: the store keeps `user.*` and `trusted.*` only.
    pub fn parse(name: &'a [u8]) -> Result<XattrName<'a>, Errno> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
        match name {
            "user.tessera.location" => Ok(XattrName::Location),
            "user.tessera.state" => Ok(XattrName::State),
            "user.tessera.mount" => Ok(XattrName::Mount),
            "user." | "trusted." => Err(Errno::EINVAL),
            name if name.starts_with("user.") || name.starts_with("trusted.") => Ok(XattrName::Stored(name)),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// The name, if the store keeps the attribute.
    pub fn stored(self) -> Option<&'a str> {
        match self {
            XattrName::Stored(name) => Some(name),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_classified() {
        assert_eq!(XattrName::parse(b"user.tessera.state"), Ok(XattrName::State));
        assert_eq!(XattrName::parse(b"user.tessera.dedup").unwrap().stored(), Some("user.tessera.dedup"));
        assert_eq!(XattrName::parse(b"trusted.x").unwrap().stored(), Some("trusted.x"));
        assert_eq!(XattrName::parse(b"user.tessera.mount").unwrap().stored(), None);
        assert_eq!(XattrName::parse(b"security.selinux"), Err(Errno::EOPNOTSUPP));
        for bad in [&b"user.\xff"[..], b"user.", b"trusted."] {
            assert_eq!(XattrName::parse(bad), Err(Errno::EINVAL));
        }
    }
}
