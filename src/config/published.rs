//! The published policy: what clients may read of the routes (contract, sections 10 and 12).
//!
//! It is made of the very values that `--print-config` shows, so no key is listed here: whatever a route was read with is
//! in it, spelt as configured. Of identity there is the table itself and none below it: how tokens are proved is the
//! operator's own. Neither is the name of the upstream in it, which is no policy.

use bytes::Bytes;
use serde_json::{Map, Value as Json};

use super::{Printed, printed::Block, source::Value};

/// The document `{"routes": […]}` as JSON. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published(Bytes);

/// What stands in a `[[route]]` and is not for clients.
const OPERATORS_OWN: &str = "upstream";

impl Published {
    /// The document of the routes that were read.
    pub(super) fn of(printed: &Printed) -> Self {
        let mut routes: Vec<Map<String, Json>> = Vec::new();
        for block in printed.blocks() {
            if block.header == "[[route]]" {
                routes.push(members(block));
            } else if let (Some(table), Some(route)) = (table_of(block), routes.last_mut()) {
                route.insert(table.to_owned(), Json::Object(members(block)));
            }
        }
        Self(serde_json::json!({ "routes": routes }).to_string().into())
    }

    /// The document as it is sent.
    #[must_use]
    pub const fn json(&self) -> &Bytes {
        &self.0
    }
}

/// Which table of a route's own a block is: `fingerprint` of `[route.fingerprint]`.
fn table_of(block: &Block) -> Option<&str> {
    let name = block.header.strip_prefix("[route.")?.strip_suffix(']')?;
    (!name.contains('.')).then_some(name)
}

fn members(block: &Block) -> Map<String, Json> {
    let entries = block.entries.iter();
    entries
        .filter(|(key, _)| *key != OPERATORS_OWN)
        .map(|(key, value)| ((*key).to_owned(), json(value)))
        .collect()
}

fn json(value: &Value) -> Json {
    match value {
        Value::Raw(text) | Value::Text(text) | Value::Odd(text) => text.as_str().into(),
        Value::Whole(number) => (*number).into(),
        Value::Ratio(number) => (*number).into(),
        Value::Flag(flag) => (*flag).into(),
        Value::List(items) => items.iter().map(|item| json(&item.value)).collect(),
        Value::Table(table) => {
            let members = table.iter();
            members
                .map(|(name, node)| (name.clone(), json(&node.value)))
                .collect()
        }
    }
}
