//! JSON objects whose members stand in the order they were put in, so that an error reads from the general to the particular.

use std::fmt::Write as _;

use serde_json::Value;

/// What the JSON shapes without a media type of their own are.
pub(super) const MEDIA_TYPE: &str = "application/json";

/// An object that is being written.
pub(super) struct Object(String);

impl Object {
    pub(super) fn new() -> Self {
        Self("{".to_owned())
    }

    /// Puts a member behind those that are there.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let comma = if self.0.len() > 1 { "," } else { "" };
        // Writing to a string does not fail.
        let _ = write!(self.0, "{comma}{}:{}", Value::from(name), value.into());
        self
    }

    /// The same where there is a value; without one there is no member.
    pub(super) fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// The object, whole.
    pub(super) fn text(mut self) -> String {
        self.0.push('}');
        self.0
    }
}
