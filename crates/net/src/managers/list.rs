//! The addresses of a cluster's managers, as users write them.

use crate::endpoint::Endpoint;
use std::fmt;
use std::str::FromStr;

/// Most addresses of a list.
pub const MAX_MANAGERS: usize = 16;

/// Addresses of a cluster's managers: at least one, at most [`MAX_MANAGERS`], all distinct. Its text form has commas between
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerList(Vec<Endpoint>);

impl ManagerList {
    /// The addresses in their order.
    #[must_use]
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.0
    }
}

impl From<Endpoint> for ManagerList {
    fn from(endpoint: Endpoint) -> ManagerList {
        ManagerList(vec![endpoint])
    }
}

impl fmt::Display for ManagerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, endpoint) in self.0.iter().enumerate() {
            write!(f, "{}{endpoint}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for ManagerList {
    type Err = String;

    /// Parses `ADDR` or `ADDR,ADDR,…`, each `HOST:PORT` or `unix:PATH`.
    fn from_str(text: &str) -> Result<ManagerList, String> {
        if text.trim().is_empty() {
            return Err("no manager is named; write HOST:PORT or unix:PATH, or several with commas between them".into());
        }
        let mut list: Vec<Endpoint> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let endpoint: Endpoint = match part {
                "" => return Err(format!("{text:?} has an empty address; write one address between two commas")),
                part => part.parse()?,
            };
            if list.contains(&endpoint) {
                return Err(format!("{text:?} names {endpoint} twice; name each manager once"));
            }
            list.push(endpoint);
        }
        match list.len() {
            0..=MAX_MANAGERS => Ok(ManagerList(list)),
            len => Err(format!("{len} managers are named; name {MAX_MANAGERS} at most")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<String, String> {
        text.parse::<ManagerList>().map(|list| list.to_string())
    }

    #[test]
    fn a_list_reads_back_as_it_is_written() {
        for text in ["127.0.0.1:7700", "unix:/run/m", "a:1,b:2,c:3", "unix:/run/m,b:2", "[::1]:7700,h:1"] {
            assert_eq!(list(text).unwrap(), text);
        }
        assert_eq!(list(" a:1, b:2 ").unwrap(), "a:1,b:2");
        let most: Vec<String> = (0..MAX_MANAGERS).map(|i| format!("h{i}:1")).collect();
        assert_eq!(list(&most.join(",")).unwrap(), most.join(","));
    }

    /// P14.
    #[test]
    fn malformed_lists_are_refused_with_the_way_out() {
        let many: Vec<String> = (0..=MAX_MANAGERS).map(|i| format!("h{i}:1")).collect();
        for (text, says) in [
            ("", "no manager is named"),
            (" ", "no manager is named"),
            (",", "empty address"),
            ("a:1,", "empty address"),
            ("a:1,,b:1", "empty address"),
            ("a:1,b", "\"b\" is not an address"),
            ("a:1,unix:", "has no path"),
            ("a:1,b:2,a:1", "names a:1 twice"),
            (&many.join(","), "name 16 at most"),
        ] {
            let error = list(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
