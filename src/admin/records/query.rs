//! What a list is asked for by, and how a page says where the next one begins.

use super::name::{digits_of, id_of};
use crate::{
    core::{canonical::values, policy::RouteName, time::Timestamp, transition::Standing},
    store::{Place, Query},
};

/// So many records are listed where nobody says how many.
const LIMIT: usize = 100;

/// And so many at most.
const MAX_LIMIT: usize = 1000;

const PARAMETERS: [&str; 4] = ["state", "route", "limit", "after"];

/// Reads a query string: each parameter once at most, and no others.
///
/// # Errors
/// What is wrong, and what is allowed.
pub(super) fn read(text: &str) -> Result<Query, String> {
    let mut query = Query {
        limit: LIMIT,
        ..Query::default()
    };
    let known = PARAMETERS.map(|name| values(text.as_bytes(), name).count());
    let pairs = text.split('&').filter(|pair| !pair.is_empty()).count();
    if known.iter().sum::<usize>() < pairs {
        return Err(format!(
            "There is a parameter that is none of these: {}.",
            PARAMETERS.join(", ")
        ));
    }
    for name in PARAMETERS {
        let Some(value) = only(text, name)? else {
            continue;
        };
        match name {
            "state" => query.standing = Some(standing(&value)?),
            "route" => query.route = Some(RouteName::new(&value)),
            "limit" => query.limit = limit(&value)?,
            _ => query.after = Some(place(&value)?),
        }
    }
    Ok(query)
}

fn only(text: &str, name: &str) -> Result<Option<String>, String> {
    let mut found = values(text.as_bytes(), name);
    let value = match found.next() {
        None => return Ok(None),
        Some(value) => value.ok().and_then(|value| String::from_utf8(value).ok()),
    };
    if found.next().is_some() {
        return Err(format!("{name} stands more than once."));
    }
    let value = value.ok_or_else(|| format!("{name} is not percent-encoded UTF-8."))?;
    Ok(Some(value))
}

fn standing(value: &str) -> Result<Standing, String> {
    let known = Standing::ALL.into_iter();
    known
        .clone()
        .find(|standing| standing.as_str() == value)
        .ok_or_else(|| {
            let all: Vec<_> = known.map(Standing::as_str).collect();
            format!("state is one of: {}.", all.join(", "))
        })
}

fn limit(value: &str) -> Result<usize, String> {
    let digits = value.bytes().all(|digit| digit.is_ascii_digit());
    let number = value.parse().ok().filter(|_| digits);
    number
        .filter(|number| (1..=MAX_LIMIT).contains(number))
        .ok_or_else(|| format!("limit is a number from 1 to {MAX_LIMIT}."))
}

/// How a page says where the next one begins: when its last record started, and the id of that. It does not matter whether that record is
/// there still.
pub(super) fn cursor(place: &Place) -> String {
    let (started_at, id) = (place.started_at.as_millis(), digits_of(&place.id));
    format!("{started_at}-{id}")
}

fn place(value: &str) -> Result<Place, String> {
    let read = || {
        let (started_at, id) = value.split_once('-')?;
        let digits = started_at.bytes().all(|digit| digit.is_ascii_digit());
        let started_at = started_at.parse().ok().filter(|_| digits)?;
        Some(Place {
            started_at: Timestamp::from_millis(started_at),
            id: id_of(id)?,
        })
    };
    read().ok_or_else(|| "after is the `next` of the page before.".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::record::RecordId;

    #[test]
    fn each_parameter_is_read() {
        let none = read("").unwrap();
        assert_eq!(
            (none.standing, none.route, none.limit, none.after),
            (None, None, LIMIT, None)
        );
        let place = Place {
            started_at: Timestamp::from_millis(1_764_543_210_123),
            id: RecordId::from_bytes([7; 32]),
        };
        let text = format!(
            "after={}&limit=7&route=create+order%2F1&state=in%2Dflight",
            cursor(&place)
        );
        let query = read(&text).unwrap();
        assert_eq!(query.standing, Some(Standing::InFlight));
        assert_eq!(query.route, Some(RouteName::new("create order/1")));
        assert_eq!((query.limit, query.after), (7, Some(place)));
        for standing in Standing::ALL {
            let query = read(&format!("state={}", standing.as_str())).unwrap();
            assert_eq!(query.standing, Some(standing));
        }
        assert!(read("limit=1").is_ok() && read("limit=1000").is_ok());
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_what_is_allowed() {
        for (text, says) in [
            ("limit=0", "1 to 1000"),
            ("limit=1001", "1 to 1000"),
            ("limit=%2B5", "1 to 1000"),
            ("limit=", "1 to 1000"),
            ("limit", "1 to 1000"),
            ("limit=99999999999999999999999", "1 to 1000"),
            ("state=done", "in-flight, unknown, complete, tombstone"),
            ("state=Unknown", "in-flight"),
            ("state=", "in-flight"),
            ("state=unknown&state=unknown", "more than once"),
            ("route=%ff", "UTF-8"),
            ("route=%2", "UTF-8"),
            ("page=2", "state, route, limit, after"),
            ("limit=1&x", "state, route, limit, after"),
            ("after=1", "`next`"),
            ("after=-", "`next`"),
            ("after=x-00", "`next`"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
        let id = "00".repeat(32);
        for wrong in [format!("+1-{id}"), format!("1-{id}0"), format!("-{id}")] {
            assert!(place(&wrong).is_err(), "{wrong}");
        }
    }
}
