//! What CPFTL does, and its numbers.

use crate::config::{self, ConfigError};
use crate::mining::{Method, Mining, PAIRS_MAX};
use std::ops::RangeInclusive;

/// Options of `cpftl`. The paper's figure 3.9 switches its mechanisms one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Sequential prefetch.
    pub sequential: bool,
    /// Pages of correlated entries.
    pub correlation: bool,
    /// Correlations are mined from all pairs at once, and not from frequent pairs of regions.
    pub full_mining: bool,
    /// Correlated entries are found without filters and without any mistake: the upper bound.
    pub full_search: bool,
    /// Dirty entries in a cache of their own, by translation page.
    pub dirty_index: bool,
    /// Translation pages that change often stay longer in the dirty cache, and have their own blocks.
    pub skew: bool,
    /// Least support of a correlation, in windows per mille.
    pub support: u32,
    /// Reads of a window.
    pub window: u32,
    /// Pages of a region.
    pub region: u32,
    /// The most pairs that mining counts at a time.
    pub pairs: u32,
    /// The most entries that a read of a correlated page brings in.
    pub bring: u32,
    /// Entries of a correlated page that may be outdated before the next one drops it.
    pub outdated: u32,
    /// Percent of the map cache for the prediction directory.
    pub predictor: u32,
    /// Percent of the map cache above which dirty entries leave before clean ones.
    pub dirty: u32,
    /// A translation page changes often if it is updated so many times as often as one on average.
    pub hot: u32,
    /// Such a page is not written while it has fewer dirty entries, as far as half of the dirty entries' share allows.
    pub keep: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            sequential: true,
            correlation: true,
            full_mining: false,
            full_search: false,
            dirty_index: true,
            skew: true,
            support: 1,
            window: 32,
            region: 4096,
            pairs: PAIRS_MAX as u32,
            bring: 64,
            outdated: 128,
            predictor: 6,
            dirty: 75,
            hot: 2,
            keep: 16,
        }
    }
}

impl Options {
    /// Reads `no-MECHANISM` and `KEY=N`, with commas between them; what is not named is as by default.
    ///
    /// # Errors
    /// An unknown word, or a number outside its range.
    pub fn parse(text: &str) -> Result<Options, ConfigError> {
        let mut options = Options::default();
        for word in config::options(text)? {
            match word.split_once('=') {
                None => options.switch(word)?,
                Some((key, value)) => options.set(word, key, value)?,
            }
        }
        Ok(options)
    }

    fn switch(&mut self, word: &str) -> Result<(), ConfigError> {
        match word {
            "no-sequential" => self.sequential = false,
            "no-correlation" => self.correlation = false,
            "full-mining" => self.full_mining = true,
            "full-search" => self.full_search = true,
            "no-dirty-index" => self.dirty_index = false,
            "no-skew" => self.skew = false,
            _ => return Err(ConfigError::Cpftl(word.into())),
        }
        Ok(())
    }

    fn set(&mut self, word: &str, key: &str, value: &str) -> Result<(), ConfigError> {
        let (field, range, words): (_, RangeInclusive<u32>, _) = match key {
            "support" => (&mut self.support, 1..=1000, "1 to 1000 per mille"),
            "window" => (&mut self.window, 2..=1024, "2 to 1024 reads"),
            "region" => (&mut self.region, 1..=1 << 24, "1 to 16777216 pages"),
            "pairs" => (&mut self.pairs, 1 << 20..=1 << 30, "1048576 to 1073741824 pairs"),
            "bring" => (&mut self.bring, 1..=65_536, "1 to 65536 entries"),
            "outdated" => (&mut self.outdated, 0..=512, "0 to 512 entries"),
            "predictor" => (&mut self.predictor, 0..=50, "0 to 50 percent"),
            "dirty" => (&mut self.dirty, 1..=90, "1 to 90 percent"),
            "hot" => (&mut self.hot, 1..=1000, "1 to 1000"),
            "keep" => (&mut self.keep, 0..=65_536, "0 to 65536 entries"),
            _ => return Err(ConfigError::Cpftl(word.into())),
        };
        let wrong = || ConfigError::Key { key: key.into(), value: value.into(), range: words };
        *field = value.parse().ok().filter(|n| range.contains(n)).ok_or_else(wrong)?;
        Ok(())
    }

    /// How correlations are mined.
    pub fn mining(&self) -> Mining {
        let method = if self.full_mining { Method::Full } else { Method::Clustered(self.region) };
        Mining { window: self.window as usize, per_mille: self.support, method, pairs_max: self.pairs as usize }
    }

    /// Whether translation pages are told apart by how often they change; only the dirty index can.
    pub fn is_skew_aware(&self) -> bool {
        self.skew && self.dirty_index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = Options::parse("no-sequential,full-search,support=9,window=64").unwrap();
        let default = Options::default();
        let expected = Options { sequential: false, full_search: true, support: 9, window: 64, ..default };
        assert_eq!(options, expected);
        for bad in [
            "",
            "correlation",
            "support=0",
            "support=x",
            "window=1",
            "lanes=2",
            "no-skew,",
            "dirty=91",
            "hot=2,hot=2",
            "pairs=1000",
        ] {
            assert!(Options::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_message_about_an_unknown_option_names_every_key() {
        let message = Options::parse("none").unwrap_err().to_string();
        for key in ["support", "window", "region", "pairs", "bring", "outdated", "predictor", "dirty", "hot", "keep"] {
            assert!(matches!(Options::parse(&format!("{key}=x")), Err(ConfigError::Key { .. })), "{key}");
            assert!(message.contains(&format!("{key}=N")), "{key}: {message}");
        }
    }
}
