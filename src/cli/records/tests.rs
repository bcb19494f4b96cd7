use bytes::Bytes;

use super::*;

fn answer(status: u16, document: &Value) -> Answer {
    let body = match document {
        Value::Null => Bytes::new(),
        document => document.to_string().into(),
    };
    let status = StatusCode::from_u16(status).unwrap();
    Answer { status, body }
}

const ID: &str = "0b64750e824a01b0";

fn listing(format: Format) -> Action {
    Action::List {
        state: Some("unknown".into()),
        route: Some("create order/ä".into()),
        limit: Some(7),
        after: None,
        format,
    }
}

fn show(format: Format) -> Action {
    let id = ID.into();
    Action::Show { id, format }
}

fn row(route: &str, status: &Value) -> Value {
    json!({"id": format!("{ID}{}", "7".repeat(48)), "route": route, "state": "unknown", "status": status,
        "started_at": "2026-11-30T19:21:57.000Z", "expires_at": "2026-12-01T19:21:57.000Z", "lease_until": null,
        "bytes": 0})
}

#[test]
fn each_action_has_its_words_in_the_api() {
    let said = |action: &Action| format!("{:?}", question(action));
    let list = said(&listing(Format::Text));
    assert!(
        list.contains("/api/v1/records?state=unknown&route=create%20order%2F%C3%A4&limit=7\""),
        "{list}"
    );
    let all = Action::List {
        state: None,
        route: None,
        limit: None,
        after: None,
        format: Format::Json,
    };
    assert!(said(&all).contains("\"/api/v1/records\""));
    assert!(said(&Action::Purge { id: ID.into() }).contains("DELETE"));
    let headers = [("x-a", "1"), ("location", "/o/9"), ("x-a", "2")];
    let completed = document(&Resolution::Complete {
        status: 201,
        headers: headers
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        body: "{}".into(),
    });
    let wanted = json!({"outcome": "complete", "status": 201, "body": "{}",
        "headers": {"x-a": ["1", "2"], "location": ["/o/9"]}});
    assert_eq!(serde_json::from_str::<Value>(&completed).unwrap(), wanted);
    assert_eq!(document(&Resolution::Release), r#"{"outcome":"release"}"#);
}

#[test]
fn a_list_is_a_table_whose_columns_stand_below_each_other() {
    let rows = json!({"records": [row("create-order", &201.into()), row("x\u{1b}[31m", &Value::Null)],
        "truncated": true, "next": "5-77"});
    let said = say(&listing(Format::Text), &answer(200, &rows));
    assert_eq!(
        said.out,
        "RECORD            STATE    ROUTE         STATUS  STARTED                   EXPIRES                   BYTES\n\
         0b64750e824a01b0  unknown  create-order  201     2026-11-30T19:21:57.000Z  2026-12-01T19:21:57.000Z  0\n\
         0b64750e824a01b0  unknown  x\u{fffd}[31m        -       2026-11-30T19:21:57.000Z  2026-12-01T19:21:57.000Z  0\n"
    );
    assert_eq!(said.err, "there are more: --after 5-77");
    assert_eq!(said.exit, Exit::Done);
    let json = say(&listing(Format::Json), &answer(200, &rows));
    assert_eq!(json, Said::done(format!("{rows}\n")));
}

#[test]
fn nothing_that_fits_is_an_exit_status_of_its_own() {
    let none = json!({"records": [], "truncated": false});
    let said = say(&listing(Format::Text), &answer(200, &none));
    assert_eq!((said.out.as_str(), said.exit), ("", Exit::Nothing));
    let said = say(&listing(Format::Json), &answer(200, &none));
    assert_eq!((said.out, said.exit), (format!("{none}\n"), Exit::Nothing));
    let absent = json!({"title": "Not Found", "detail": "There is no such record."});
    let said = say(&show(Format::Text), &answer(404, &absent));
    assert_eq!(said.err, "There is no such record. (404 Not Found)");
    assert_eq!(said.exit, Exit::Nothing);
    // Another server, or an older one.
    for strange in [json!({"title": "Not Found"}), Value::Null] {
        let said = say(&show(Format::Text), &answer(404, &strange));
        assert_eq!(said.exit, Exit::Failed);
    }
    let strange = say(&listing(Format::Text), &answer(200, &json!({"a": 1})));
    assert_eq!(strange.exit, Exit::Failed);
}

#[test]
fn one_record_is_shown_whole_and_what_was_done_in_one_line() {
    let one = row("orders", &Value::Null);
    let said = say(&show(Format::Text), &answer(200, &one));
    let id = one["id"].as_str().unwrap();
    assert!(
        said.out
            .starts_with(&format!("id           {id}\nroute        orders\n")),
        "{}",
        said.out
    );
    assert!(said.out.contains("lease_until  -\n"), "{}", said.out);
    let said = say(&show(Format::Json), &answer(200, &one));
    assert_eq!(said.out, format!("{one}\n"));
    let purge = Action::Purge { id: ID.into() };
    let resolve = |resolution| Action::Resolve {
        id: ID.into(),
        resolution,
    };
    let complete = Resolution::Complete {
        status: 201,
        headers: Vec::new(),
        body: String::new(),
    };
    for (action, status, says) in [
        (&purge, 204, "purged 0b64750e824a01b0: "),
        (
            &resolve(Resolution::Release),
            200,
            "released 0b64750e824a01b0: ",
        ),
        (&resolve(complete), 200, "completed 0b64750e824a01b0: "),
    ] {
        let done = say(action, &answer(status, &Value::Null));
        assert_eq!((done.out.lines().count(), done.exit), (1, Exit::Done));
        assert!(done.out.starts_with(says), "{}", done.out);
        let refused = json!({"detail": "No."});
        let refused = say(action, &answer(409, &refused));
        assert_eq!(refused, Said::failed("No. (409 Conflict)".into()));
    }
    assert_eq!(say(&purge, &answer(200, &Value::Null)).exit, Exit::Failed);
}
