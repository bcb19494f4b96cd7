//! The effective configuration as TOML: what `--print-config` shows. Loading it again gives the same configuration.

use std::fmt;

use super::source::{Name, Value};

/// The sections that were read, in the order of reading.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Printed(Vec<Block>);

/// One section.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Block {
    /// `[server]`, `[[route]]`
    pub(super) header: String,
    /// Its keys, in the order of reading; values without their secrets.
    pub(super) entries: Vec<(&'static str, Value)>,
}

impl Printed {
    /// Its sections.
    pub(super) fn blocks(&self) -> &[Block] {
        &self.0
    }

    /// Opens a section and returns its place.
    pub(super) fn open(&mut self, header: &str) -> usize {
        self.0.push(Block {
            header: header.to_owned(),
            entries: Vec::new(),
        });
        self.0.len() - 1
    }

    /// Adds a key to an open section.
    pub(super) fn add(&mut self, place: usize, key: &'static str, value: Value) {
        if let Some(block) = self.0.get_mut(place) {
            block.entries.push((key, value));
        }
    }
}

impl fmt::Display for Printed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = self.0.iter().filter(|block| !block.entries.is_empty());
        for (at, block) in blocks.enumerate() {
            let line = if at == 0 { "" } else { "\n" };
            writeln!(f, "{line}{}", block.header)?;
            for (key, value) in &block.entries {
                writeln!(f, "{} = {value}", Name(key))?;
            }
        }
        Ok(())
    }
}
