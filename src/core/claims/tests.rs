use super::*;

fn read(payload: &str) -> Result<Claims, TokenFault> {
    Claims::read(payload.as_bytes().to_vec(), &Expected::default())
}

fn at(payload: &str, path: &str) -> Result<Option<Vec<u8>>, NoName> {
    let path = ClaimPath::parse(path).expect("a path");
    read(payload).expect("claims").at(&path)
}

#[test]
fn a_path_is_names_with_dots_or_a_pointer() {
    let names = |text: &str| ClaimPath::parse(text).map(|path| path.names().to_vec());
    let owned = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(names("sub"), owned(&["sub"]));
    assert_eq!(names("realm.tenant"), owned(&["realm", "tenant"]));
    assert_eq!(names("/realm/tenant"), names("realm.tenant"));
    assert_eq!(
        names("/https:~1~1id.test~1tenant"),
        owned(&["https://id.test/tenant"])
    );
    for bad in ["", ".", "a.", ".a", "a..b", "/", "/a/", "/a~", "/a~2b"] {
        assert_eq!(names(bad), None, "{bad}");
    }
}

#[test]
fn a_claim_is_a_value_with_its_kind() {
    let claims = r#"{"exp":1,"s":"1","n":1,"t":true,"f":false,"z":null,"e":"","a":["1"],"o":{"in":{"s":"x","z":null}}}"#;
    let values = ["s", "n", "t", "f", "o.in.s"].map(|path| at(claims, path));
    for (index, value) in values.iter().enumerate() {
        assert!(matches!(value, Ok(Some(_))), "{value:?}");
        let same = values.iter().filter(|other| *other == value).count();
        assert_eq!(same, 1, "{index}");
    }
    for missing in ["z", "e", "none", "o.none", "o.in.z", "o.in.z.deeper", "z.a"] {
        assert_eq!(at(claims, missing), Ok(None), "{missing}");
    }
    for no_name in ["a", "o", "o.in", "a.0", "s.length", "n.x", "e.x"] {
        assert_eq!(at(claims, no_name), Err(NoName), "{no_name}");
    }
}

#[test]
fn spelling_does_not_make_another_caller_and_value_does() {
    let value = |text: &str| at(&format!("{{\"exp\":1, \"c\" : {text} }}"), "c");
    assert_eq!(value("1"), value("1.0"));
    assert_eq!(value("\"\\u0061\""), value("\"a\""));
    assert_ne!(value("9007199254740993"), value("9007199254740992"));
    assert_ne!(
        value("123456789012345678901"),
        value("123456789012345678902")
    );
    assert_ne!(value("\"a\""), value("\"A\""));
    assert_ne!(value("\"true\""), value("true"));
}

#[test]
fn what_are_no_claims_is_refused() {
    for bad in [
        "",
        "[]",
        "\"x\"",
        "null",
        "{}",
        "{\"sub\":\"a\"}",
        "{\"exp\":\"9\"}",
        "{\"exp\":null}",
        "{\"exp\":1e999}",
        "{\"exp\":1,\"nbf\":\"1\"}",
        "{\"exp\":1,\"nbf\":null}",
        "{\"exp\":1,\"sub\":\"a\",\"sub\":\"b\"}",
        "{\"exp\":1,\"sub\":\"a\",\"s\\u0075b\":\"b\"}",
        "{\"exp\":1,\"o\":{\"a\":1,\"a\":2}}",
        "{\"exp\":1} {}",
        "{\"exp\":1,}",
    ] {
        assert_eq!(read(bad).err(), Some(TokenFault::Claims), "{bad}");
    }
    assert!(Claims::read(b"{\"exp\":1,\"a\":\"\xff\"}".to_vec(), &Expected::default()).is_err());
}

#[test]
fn times_have_the_leeway_and_nothing_more() {
    let claims = read("{\"exp\":1000,\"nbf\":500}").expect("claims");
    let at = |ms| claims.in_force(Timestamp::from_millis(ms));
    assert_eq!(at(469_999), Err(TokenFault::NotYetValid));
    assert_eq!(at(470_000), Ok(()));
    assert_eq!(at(1_029_999), Ok(()));
    assert_eq!(at(1_030_000), Err(TokenFault::Expired));
    let parts = read("{\"exp\":1000.5}").expect("claims");
    assert_eq!(parts.in_force(Timestamp::from_millis(1_030_499)), Ok(()));
    assert!(parts.in_force(Timestamp::from_millis(1_030_500)).is_err());
    let past = read("{\"exp\":-1}").expect("claims");
    assert!(past.in_force(Timestamp::from_millis(40_000)).is_err());
}

#[test]
fn issuer_and_audience_are_compared_whole() {
    let expected = Expected {
        issuer: Some("https://id.test".into()),
        audience: Some("orders".into()),
    };
    let read = |rest: &str| {
        let payload = format!("{{\"exp\":1{rest}}}");
        Claims::read(payload.into_bytes(), &expected).err()
    };
    let iss = ",\"iss\":\"https://id.test\"";
    for good in [
        "\"orders\"",
        "[\"orders\"]",
        "[\"users\",\"orders\"]",
        "\"\\u006frders\"",
    ] {
        assert_eq!(read(&format!("{iss},\"aud\":{good}")), None, "{good}");
    }
    for bad in [
        "\"Orders\"",
        "\"orders \"",
        "\"\"",
        "[]",
        "null",
        "7",
        "[7,\"orders\"]",
        "{\"orders\":1}",
        "[[\"orders\"]]",
    ] {
        assert_eq!(
            read(&format!("{iss},\"aud\":{bad}")),
            Some(TokenFault::Audience),
            "{bad}"
        );
    }
    assert_eq!(read(iss), Some(TokenFault::Audience));
    for bad in [
        "\"https://id.test/\"",
        "\"https://ID.test\"",
        "[\"https://id.test\"]",
        "null",
        "1",
    ] {
        assert_eq!(
            read(&format!(",\"aud\":\"orders\",\"iss\":{bad}")),
            Some(TokenFault::Issuer),
            "{bad}"
        );
    }
    assert_eq!(read(",\"aud\":\"orders\""), Some(TokenFault::Issuer));
}

#[test]
fn faults_have_names_of_their_own() {
    let names: std::collections::BTreeSet<_> =
        TokenFault::ALL.iter().map(|fault| fault.as_str()).collect();
    assert_eq!(names.len(), TokenFault::ALL.len());
}
