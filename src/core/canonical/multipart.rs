//! Multipart bodies (RFC 2046, section 5.1) without their boundary, which clients choose anew for every try.

/// A multipart body as the bytes between its delimiters: the preamble, every part with its head, the epilogue.
///
/// `None`: it does not parse with this boundary, or parsers could disagree about it (white space after a
/// delimiter, a longer word that starts like one, bare line feeds).
#[must_use]
pub fn multipart<'a>(body: &'a [u8], boundary: &[u8]) -> Option<Vec<&'a [u8]>> {
    if boundary.is_empty() {
        return None;
    }
    let delimiter = [b"\r\n--", boundary].concat();
    let mut pieces = Vec::new();
    // The first delimiter may stand at the very start, without the line end that belongs to all others.
    let mut rest = if let Some(rest) = delimiter
        .get(2..)
        .and_then(|first| body.strip_prefix(first))
    {
        pieces.push(&[][..]);
        rest
    } else {
        let (preamble, rest) = cut(body, &delimiter)?;
        pieces.push(preamble);
        rest
    };
    loop {
        if let Some(epilogue) = rest.strip_prefix(b"--") {
            pieces.push(epilogue);
            return (epilogue.is_empty() || epilogue.starts_with(b"\r\n")).then_some(pieces);
        }
        // A part may have no head and no content: then the line end of one delimiter begins the next.
        rest.strip_prefix(b"\r\n")?;
        let (part, after) = cut(rest, &delimiter)?;
        pieces.push(part);
        rest = after;
    }
}

/// What stands before the first `needle` in `text`, and what after it.
///
/// The needle has a CR at its start and nowhere else, so that a search that starts at every CR reads no byte twice.
fn cut<'a>(text: &'a [u8], needle: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.iter().position(|byte| *byte == b'\r')?;
        let (before, rest) = text.split_at_checked(at)?;
        if let Some(after) = rest.strip_prefix(needle) {
            return Some((before, after));
        }
        from = at + 1;
    }
}

/// The boundary of a multipart Content-Type: one `boundary` parameter, token or quoted string (RFC 9110, section
/// 5.6.6), of 1 to 70 printable ASCII bytes (RFC 2046, section 5.1.1).
#[must_use]
pub fn boundary(content_type: &[u8]) -> Option<Vec<u8>> {
    let start = content_type.iter().position(|byte| *byte == b';')?;
    let mut rest = content_type.get(start..)?;
    let mut found = None;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return found;
        }
        rest = rest.strip_prefix(b";")?.trim_ascii_start();
        if rest.is_empty() || rest.starts_with(b";") {
            continue;
        }
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (rest.get(..equals)?, rest.get(equals + 1..)?);
        let (value, after) = parameter_value(value)?;
        rest = after;
        if name.eq_ignore_ascii_case(b"boundary") {
            let valid = (1..=70).contains(&value.len())
                && value.iter().all(|byte| matches!(byte, 0x20..=0x7e));
            if !valid || found.replace(value).is_some() {
                return None;
            }
        }
    }
}

/// A parameter's value, unquoted, and what stands behind it.
fn parameter_value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text
            .iter()
            .position(|byte| matches!(byte, b';' | b' ' | b'\t'))
            .unwrap_or(text.len());
        let (token, rest) = text.split_at_checked(end)?;
        return Some((token.to_vec(), rest));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter();
    loop {
        match bytes.next()? {
            b'"' => return Some((value, bytes.as_slice())),
            b'\\' => value.push(*bytes.next()?),
            byte => value.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(boundary: &str, parts: &[&str]) -> Vec<u8> {
        let mut text = String::new();
        for part in parts {
            text.extend(["--", boundary, "\r\n", part, "\r\n"]);
        }
        (text + &format!("--{boundary}--\r\n")).into_bytes()
    }

    const FIELD: &str = "Content-Disposition: form-data; name=\"f\"\r\n\r\nhello";

    #[test]
    fn the_boundary_does_not_count_and_the_parts_do() {
        let (a, b) = (
            body("aaa", &[FIELD, FIELD]),
            body("bbbbbb", &[FIELD, FIELD]),
        );
        let first = multipart(&a, b"aaa").expect("multipart");
        assert_eq!(multipart(&b, b"bbbbbb").as_ref(), Some(&first));
        for parts in [
            &[FIELD][..],
            &[FIELD, FIELD, FIELD],
            &[
                FIELD,
                "Content-Disposition: form-data; name=\"f\"\r\n\r\nhellp",
            ],
        ] {
            assert_ne!(
                multipart(&body("aaa", parts), b"aaa").as_ref(),
                Some(&first)
            );
        }
    }

    #[test]
    fn preamble_and_epilogue_count() {
        let plain = multipart(b"--a\r\n\r\nx\r\n--a--", b"a").expect("multipart");
        assert_eq!(plain, [&b""[..], b"\r\n\r\nx", b""]);
        let around =
            multipart(b"before\r\n--a\r\n\r\nx\r\n--a--\r\nafter", b"a").expect("multipart");
        assert_eq!(around, [&b"before"[..], b"\r\n\r\nx", b"\r\nafter"]);
        assert_eq!(
            multipart(b"\r\n--a\r\n\r\nx\r\n--a--", b"a"),
            Some(plain),
            "an empty preamble"
        );
        assert_eq!(multipart(b"--a--", b"a"), Some(vec![&b""[..], b""]));
        assert_eq!(
            multipart(b"--a\r\n--a--", b"a"),
            Some(vec![&b""[..], b"", b""]),
            "an empty part"
        );
    }

    #[test]
    fn what_does_not_parse_is_raw() {
        for bad in [
            &b""[..],
            b"hello",
            b"--a",
            b"--a\r\nx",
            b"--a\r\nx\r\n",
            b"--a\r\nx\r\n--a",
            b"--a\r\nx\r\n--a-",
            b"--a\r\nx\r\n--a--x",
            b"--a\r\nx\r\n--ab\r\ny\r\n--a--", // a delimiter or not?
            b"--a \r\nx\r\n--a--",
            b"--a\nx\n--a--",
            b"--b\r\nx\r\n--b--",
        ] {
            assert_eq!(multipart(bad, b"a"), None, "{}", bad.escape_ascii());
        }
        assert_eq!(multipart(b"--\r\nx\r\n----", b""), None);
    }

    #[test]
    fn the_boundary_is_read_from_the_type() {
        for (text, wanted) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            (
                "multipart/form-data;boundary=abc;charset=utf-8",
                Some("abc"),
            ),
            (
                "multipart/form-data; charset=x ; BOUNDARY=\"a b\\\"c\" ;",
                Some("a b\"c"),
            ),
            (
                "multipart/form-data; x=\";boundary=no\"; boundary=yes",
                Some("yes"),
            ),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=\"", None),
            ("multipart/form-data; boundary", None),
            ("multipart/form-data; boundary=a; boundary=a", None),
            ("multipart/form-data; boundary=a b", None),
            ("multipart/form-data; boundary=\"a\tb\"", None),
        ] {
            assert_eq!(
                boundary(text.as_bytes()).as_deref(),
                wanted.map(str::as_bytes),
                "{text}"
            );
        }
        let long = |n| format!("multipart/form-data; boundary={}", "x".repeat(n));
        assert!(boundary(long(70).as_bytes()).is_some());
        assert_eq!(boundary(long(71).as_bytes()), None);
    }

    proptest! {
        /// Whatever parses can be put together again, so that no byte but the delimiters' is lost.
        #[test]
        fn nothing_but_delimiters_is_left_out(text in "(--a|\r\n|-|a|x|\r){0,16}") {
            if let Some(pieces) = multipart(text.as_bytes(), b"a") {
                let (epilogue, parts) = pieces.split_last().expect("at least two pieces");
                let built = [&parts.join(&b"\r\n--a"[..]), &b"\r\n--a--"[..], epilogue].concat();
                // An empty preamble may have a line end or none.
                prop_assert!(built == text.as_bytes() || built == [b"\r\n", text.as_bytes()].concat());
            }
        }

        #[test]
        fn no_type_is_a_surprise(text in "(;| |boundary|=|\"|\\\\|a){0,12}") {
            let read = boundary(text.as_bytes());
            prop_assert!(read.is_none_or(|value| !value.is_empty()));
        }
    }
}
