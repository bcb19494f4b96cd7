//! A record as operators see it.

use serde_json::{Value, json};

use super::name::digits_of;
use crate::{store::Row, telemetry::log::rfc3339};

/// One row. What there is none of is null.
pub(super) fn document(row: &Row) -> Value {
    json!({
        "id": digits_of(&row.id),
        "route": row.route.as_str(),
        "state": row.standing.as_str(),
        "status": row.status.map(|status| status.as_u16()),
        "started_at": rfc3339(row.started_at),
        "expires_at": rfc3339(row.expires_at),
        "lease_until": row.lease_until.map(rfc3339),
        "bytes": row.bytes,
    })
}

/// The row of a record that was released, and is gone by that.
pub(super) fn released(row: &Row) -> Value {
    json!({
        "id": digits_of(&row.id),
        "route": row.route.as_str(),
        "state": "released",
        "status": null,
        "started_at": rfc3339(row.started_at),
        "expires_at": null,
        "lease_until": null,
        "bytes": 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{policy::RouteName, record::RecordId, time::Timestamp, transition::Standing};

    #[test]
    fn times_are_rfc_3339_and_what_there_is_none_of_is_null() {
        let row = Row {
            id: RecordId::from_bytes([0x0b; 32]),
            route: RouteName::new("orders"),
            standing: Standing::Unknown,
            status: None,
            started_at: Timestamp::from_millis(1_764_543_210_123),
            expires_at: Timestamp::from_millis(u64::MAX),
            lease_until: None,
            bytes: 0,
        };
        let wanted = json!({
            "id": "0b".repeat(32),
            "route": "orders",
            "state": "unknown",
            "status": null,
            "started_at": "2025-11-30T22:53:30.123Z",
            "expires_at": "9999-12-31T23:59:59.999Z",
            "lease_until": null,
            "bytes": 0,
        });
        assert_eq!(document(&row), wanted);
        let members =
            |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
        assert_eq!(members(&released(&row)), members(&wanted));
        assert_eq!(released(&row)["state"], "released");
    }
}
