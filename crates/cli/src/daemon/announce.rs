//! Announces where a daemon listens: one line on stdout, as text or (`--announce`) as JSON.

use serde::{Deserialize, Serialize};
use std::io::Write;

/// Where a daemon listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Announcement {
    /// `manager`, `node` or `mount`.
    pub role: String,
    /// Addresses served: `HOST:PORT` or `unix:PATH`, with the chosen ports. A mount announces its directory.
    pub listen: Vec<String>,
    /// `HOST:PORT` of `/metrics`, if served.
    pub metrics: Option<String>,
}

impl Announcement {
    /// The daemon's `HOST:PORT`, if it listens on one.
    pub fn tcp(&self) -> Option<&str> {
        self.listen.iter().map(String::as_str).find(|address| !address.starts_with("unix:"))
    }

    /// Prints the announcement. A closed stdout is not an error: the daemon serves without it.
    pub fn print(&self, as_json: bool) {
        let line = match as_json {
            true => serde_json::to_string(self).unwrap_or_default(),
            false => {
                let metrics = self.metrics.as_ref().map(|m| format!(", metrics at http://{m}/metrics"));
                format!("{} serves {}{}", self.role, self.listen.join(", "), metrics.unwrap_or_default())
            }
        };
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}
