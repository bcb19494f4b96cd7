//! AWS Signature Version 4 in an Authorization header: who says that they signed. Nothing is verified here.

/// The access key id of an `AWS4-HMAC-SHA256` value, such as
/// `AWS4-HMAC-SHA256 Credential=AKID/20261130/eu-west-1/orders/aws4_request, SignedHeaders=host;x-amz-date, Signature=…`.
///
/// The three parameters stand in any order, each once and no other; the credential has its five parts, the date eight
/// digits, the signature 64 hexadecimal digits. `None`: it is not written so.
pub(super) fn access_key_id(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"AWS4-HMAC-SHA256";
    let (scheme, rest) = value.split_at_checked(SCHEME.len())?;
    if !scheme.eq_ignore_ascii_case(SCHEME) || !matches!(rest, [b' ' | b'\t', ..]) {
        return None;
    }
    let (mut credential, mut headers, mut signature) = (None, None, None);
    for parameter in rest.split(|byte| *byte == b',') {
        let parameter = parameter.trim_ascii();
        let equals = parameter.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (parameter.get(..equals)?, parameter.get(equals + 1..)?);
        let slot = match name {
            b"Credential" => &mut credential,
            b"SignedHeaders" => &mut headers,
            b"Signature" => &mut signature,
            _ => return None,
        };
        if slot.replace(value).is_some() {
            return None;
        }
    }
    let signature = signature?;
    let hexadecimal = signature.len() == 64 && signature.iter().all(u8::is_ascii_hexdigit);
    (hexadecimal && visible(headers?))
        .then(|| key_of_credential(credential?))
        .flatten()
}

fn key_of_credential(credential: &[u8]) -> Option<&[u8]> {
    let mut parts = credential.split(|byte| *byte == b'/');
    let [key, date, region, service, end] = [(); 5].map(|()| parts.next().unwrap_or_default());
    let dated = date.len() == 8 && date.iter().all(u8::is_ascii_digit);
    let named = visible(key) && key.len() <= LONGEST_KEY_ID && visible(region) && visible(service);
    (dated && named && end == b"aws4_request" && parts.next().is_none()).then_some(key)
}

/// AWS's own are 16 to 128 characters; what speaks its protocol elsewhere has shorter ones too.
const LONGEST_KEY_ID: usize = 128;

fn visible(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: &str = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7";

    fn key(value: &str) -> Option<String> {
        let key = access_key_id(value.as_bytes())?;
        Some(String::from_utf8_lossy(key).into_owned())
    }

    #[test]
    fn the_key_id_is_taken_from_what_is_written_as_aws_does() {
        let akid = Some("AKIDEXAMPLE".to_owned());
        for value in [
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, SignedHeaders=host;x-amz-date, Signature=SIG",
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request,SignedHeaders=host,Signature=SIG",
            "aws4-hmac-sha256 SignedHeaders=host, Signature=SIG, Credential=AKIDEXAMPLE/20261231/eu/orders/aws4_request",
        ] {
            assert_eq!(key(&value.replace("SIG", SIGNATURE)), akid, "{value}");
        }
    }

    #[test]
    fn anything_else_names_nobody() {
        let good = format!(
            "AWS4-HMAC-SHA256 Credential=A/20150830/r/s/aws4_request, SignedHeaders=host, Signature={SIGNATURE}"
        );
        assert_eq!(key(&good), Some("A".to_owned()));
        for (from, to) in [
            ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256"),
            ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
            ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
            ("AWS4-HMAC-SHA256", "Bearer"),
            ("A/2015", "/2015"),
            ("A/2015", "A B/2015"),
            ("A/2015", "\u{e9}/2015"),
            ("A/2015", "A/B/2015"),
            ("20150830", "2015083"),
            ("20150830", "2015083x"),
            ("/r/", "//"),
            ("/s/", "//"),
            ("aws4_request", "aws4_Request"),
            ("aws4_request", "aws4_request/"),
            ("Credential=", "credential="),
            ("Credential=", "Credential"),
            ("SignedHeaders=host", "SignedHeaders="),
            ("SignedHeaders=host, ", ""),
            (
                "SignedHeaders=host",
                "SignedHeaders=host, Credential=B/20150830/r/s/aws4_request",
            ),
            (
                "SignedHeaders=host",
                "SignedHeaders=host, SignedHeaders=host",
            ),
            ("SignedHeaders=host", "SignedHeaders=host, Extra=1"),
            ("SignedHeaders=host", "SignedHeaders=host,"),
            (SIGNATURE, ""),
            (SIGNATURE, &SIGNATURE[1..]),
            ("5d67", "xd67"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            assert_eq!(key(&bad), None, "{bad}");
        }
        assert_eq!(key(""), None);
        assert_eq!(
            key(&good.replace("A/2", &format!("{}/2", "A".repeat(129)))),
            None
        );
    }
}
