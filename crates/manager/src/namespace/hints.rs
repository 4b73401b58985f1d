//! Hints as they are stored: one encoded set per inode, sorted by name, values in canonical form.

use crate::error::{Result, invalid};
use prost::Message;
use tessera_policy::{Policy, canonical};
use tessera_wire::Hint;

/// The hints that were set on an inode or inherited at its creation; defaults are left out.
#[derive(Clone, PartialEq, Message)]
pub struct HintSet {
    /// Sorted by name.
    #[prost(message, repeated, tag = "1")]
    pub hints: Vec<Hint>,
}

impl HintSet {
    /// Decodes a database column.
    pub fn read(column: &[u8]) -> HintSet {
        HintSet::decode(column).unwrap_or_default()
    }

    /// Encodes the set for a database column.
    pub fn column(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Sets one hint by its own or its classic name. The value is validated and made canonical (P14).
    ///
    /// # Errors
    /// `Invalid` if the name or the value is not valid.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let (name, value) = canonical(name, value).or_else(|error| invalid(error.to_string()))?;
        match self.hints.binary_search_by(|h| h.name.as_str().cmp(name)) {
            Ok(at) => self.hints[at].value = value,
            Err(at) => self.hints.insert(at, Hint { name: name.to_string(), value }),
        }
        Ok(())
    }

    /// Removes a hint; returns whether it was set.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.hints.len();
        self.hints.retain(|h| h.name != name);
        self.hints.len() < before
    }

    /// The value of a hint.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.hints.iter().find(|h| h.name == name).map(|h| h.value.as_str())
    }

    /// These hints, overridden by `others`.
    pub fn with(mut self, others: &[Hint]) -> Result<HintSet> {
        for hint in others {
            self.set(&hint.name, &hint.value)?;
        }
        Ok(self)
    }

    /// The policy that the hints resolve to. Stored hints are valid, except those that a later release wrote: these are refused.
    pub fn policy(&self) -> Result<Policy> {
        Policy::from_hints(self.hints.iter().map(|h| (h.name.as_str(), h.value.as_str())))
            .or_else(|error| invalid(error.to_string()))
    }
}

/// All hints of a policy, defaults included.
pub fn all(policy: &Policy) -> Vec<Hint> {
    policy.to_hints().into_iter().map(|(name, value)| Hint { name: name.to_string(), value }).collect()
}
