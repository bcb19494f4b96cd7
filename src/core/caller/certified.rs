//! Who a verified certificate is for: a SPIFFE id (SPIFFE-ID and X509-SVID), or else its subject.

/// Who a certificate is for. It was verified before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certified {
    /// The one URI in its alternative names, which is a SPIFFE id.
    Spiffe(String),
    /// Its subject, as it is encoded (DER). Two encodings of one name are two callers.
    Subject(Vec<u8>),
    /// Nobody can tell: a credential that is refused, not one that is missing.
    Unclear,
}

/// An encoded name without any part (RFC 5280, section 4.1.2.6): what certificates have whose names are all alternative ones.
const NOBODY: &[u8] = &[0x30, 0];

impl Certified {
    /// Whom a certificate with this subject and these URIs among its alternative names is for.
    ///
    /// A certificate that has a SPIFFE id must have no other URI (X509-SVID, section 2), and the id must be that of a workload: whoever
    /// reads two ids, or half of one, may read another than who signed it meant. Other URIs name nobody here. A certificate without
    /// a SPIFFE id and with an empty subject is for nobody: all of its kind would be one caller.
    #[must_use]
    pub fn of(subject: &[u8], uris: &[String]) -> Self {
        if !uris.iter().any(|uri| is_spiffe(uri)) {
            return match subject {
                [] | NOBODY => Self::Unclear,
                subject => Self::Subject(subject.to_vec()),
            };
        }
        match uris {
            [id] if is_workload(id) => Self::Spiffe(id.clone()),
            _ => Self::Unclear,
        }
    }
}

const SCHEME: &str = "spiffe:";

/// Whether it is meant to be a SPIFFE id. Schemes are compared without regard to case (RFC 3986, section 3.1).
fn is_spiffe(uri: &str) -> bool {
    let scheme = uri.as_bytes().get(..SCHEME.len());
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME.as_bytes()))
}

/// Whether it is a well-formed SPIFFE id of a workload: a trust domain and a path (SPIFFE-ID, section 2), without what a URI may have
/// beside them. It is what every implementation reads alike.
fn is_workload(uri: &str) -> bool {
    let Some(rest) = uri.strip_prefix("spiffe://") else {
        return false;
    };
    let Some((domain, path)) = rest.split_once('/') else {
        return false;
    };
    let in_domain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-._".contains(&c);
    let in_path = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
    let segment =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(in_path);
    uri.len() <= 2048
        && (1..=255).contains(&domain.len())
        && domain.bytes().all(in_domain)
        && path.split('/').all(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `CN=x`
    const SUBJECT: &[u8] = &[0x30, 12, 0x31, 10, 0x30, 8, 6, 3, 0x55, 4, 3, 0x0c, 1, b'x'];

    fn of(subject: &[u8], uris: &[&str]) -> Certified {
        let uris: Vec<_> = uris.iter().copied().map(str::to_owned).collect();
        Certified::of(subject, &uris)
    }

    #[test]
    fn one_spiffe_id_is_who_it_is_for_whatever_its_subject() {
        let longest = format!("spiffe://td/{}", "a".repeat(2048 - 12));
        for id in [
            "spiffe://td/a",
            "spiffe://prod.example-1_x/ns/Shop/sa/orders.v2",
            "spiffe://td/...",
            &longest,
        ] {
            for subject in [SUBJECT, NOBODY, &[]] {
                assert_eq!(of(subject, &[id]), Certified::Spiffe(id.to_owned()));
            }
        }
    }

    #[test]
    fn several_ids_and_malformed_ones_name_nobody() {
        let (long, domain) = (
            format!("spiffe://td/{}", "a".repeat(2048 - 11)),
            format!("spiffe://{}/a", "d".repeat(256)),
        );
        let good = "spiffe://td/a";
        for uris in [
            &[good, "spiffe://td/b"][..],
            &[good, good],
            &[good, "https://a.test/"],
            &["https://a.test/", good],
            &["spiffe://td"],
            &["spiffe://td/"],
            &["spiffe:///a"],
            &["spiffe://td/a/"],
            &["spiffe://td//a"],
            &["spiffe://td/./a"],
            &["spiffe://td/../a"],
            &["spiffe://td/%61"],
            &["spiffe://td/a?b"],
            &["spiffe://td/a#b"],
            &["spiffe://TD/a"],
            &["spiffe://td:1/a"],
            &["spiffe://u@td/a"],
            &["spiffe://td/é"],
            &["spiffe:td/a"],
            &["spiffe:"],
            &["SPIFFE://td/a"],
            &[&long],
            &[&domain],
        ] {
            assert_eq!(of(SUBJECT, uris), Certified::Unclear, "{uris:?}");
        }
    }

    #[test]
    fn without_an_id_it_is_for_its_subject_and_without_that_for_nobody() {
        for uris in [
            &[][..],
            &["https://a.test/spiffe://td/a"],
            &["urn:a", "urn:b"],
            &["spiff", "é", "spiffé://td/a"],
        ] {
            assert_eq!(of(SUBJECT, uris), Certified::Subject(SUBJECT.to_vec()));
            for nobody in [&[][..], NOBODY] {
                assert_eq!(of(nobody, uris), Certified::Unclear, "{uris:?}");
            }
        }
    }
}
