//! The names of routes, which records call by numbers: short in every index, and told to nobody where there is a key.

use std::collections::HashMap;

use super::database::Database;
use crate::{
    core::policy::RouteName,
    store::seal::{Place, Seal},
};

/// Numbers by name.
#[derive(Debug, Default)]
pub(super) struct Routes {
    numbers: HashMap<RouteName, i64>,
    last: i64,
}

impl Routes {
    /// Reads them, and seals again what was not sealed with the newest key. A name whose key is gone is passed over: its
    /// records cannot be read either.
    pub(super) fn load(database: &Database, seal: &Seal) -> rusqlite::Result<Self> {
        let mut routes = Self::default();
        for (number, kept) in database.routes()? {
            routes.last = routes.last.max(number);
            let current = seal.is_current(&kept);
            let name = seal.open(Place::Route { number }, kept).ok();
            let Some(name) = name.and_then(|name| String::from_utf8(name).ok()) else {
                continue;
            };
            if !current && let Ok(kept) = seal.seal(Place::Route { number }, name.clone().into()) {
                database.put_route(number, &kept)?;
            }
            routes.numbers.insert(RouteName::new(&name), number);
        }
        Ok(routes)
    }

    /// The number of this route, written down if it is new; `None`: its name cannot be sealed.
    pub(super) fn number(
        &mut self,
        name: &RouteName,
        database: &Database,
        seal: &Seal,
    ) -> rusqlite::Result<Option<i64>> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(Some(*number));
        }
        let number = self.last.saturating_add(1);
        let Ok(kept) = seal.seal(Place::Route { number }, name.as_str().into()) else {
            return Ok(None);
        };
        database.put_route(number, &kept)?;
        self.last = number;
        self.numbers.insert(name.clone(), number);
        Ok(Some(number))
    }
}
