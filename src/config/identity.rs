//! Reads `[identity]`, or a route's own over it, and the verifiers that claims need.

use std::{cell::RefCell, collections::BTreeMap, path::Path, sync::Arc};

use super::{
    Server,
    address::host_and_port,
    problem::Refusal,
    reader::{Report, Reported, Section, Show},
    source::Value,
    words::caller_part,
};
use rustls::pki_types::ServerName;

use crate::{
    core::{
        claims::Expected,
        policy::{CallerPart, Identity, MissingCaller},
    },
    identity::{self, KeySet, Scheme, Settings, Source, Url},
    tls::ClientAuth,
};

/// Every verifier that an identity needs, once; and the files that were read for them.
#[derive(Debug, Default)]
pub(super) struct Verifiers {
    list: RefCell<Vec<Settings>>,
    files: RefCell<BTreeMap<String, Result<Arc<KeySet>, String>>>,
}

impl Verifiers {
    /// The list that identities index.
    pub(super) fn into_list(self) -> Vec<Settings> {
        self.list.into_inner()
    }

    fn index(&self, settings: Settings) -> usize {
        let mut list = self.list.borrow_mut();
        let known = list.iter().position(|known| *known == settings);
        known.unwrap_or_else(|| {
            list.push(settings);
            list.len() - 1
        })
    }

    fn file(&self, path: &str) -> Result<Arc<KeySet>, Refusal> {
        if path.is_empty() {
            return Err(Refusal::wrong("it is empty").allowed("the path of a JSON Web Key Set"));
        }
        let mut files = self.files.borrow_mut();
        let read = files.entry(path.to_owned()).or_insert_with(|| {
            let read = identity::read(Path::new(path));
            read.map(Arc::new).map_err(|fault| fault.to_string())
        });
        read.clone()
            .map_err(|why| Refusal::wrong(why).allowed("a file with a JSON Web Key Set (RFC 7517)"))
    }
}

/// Whether requests are identified by the section that is read, or only by sections over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// It must be whole.
    InEffect(Replays),
    /// Routes may complete it.
    Ground,
}

/// Whether somebody asks the upstream before a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replays {
    /// `replay_auth` is set: it verifies the caller.
    Asked,
    /// Nobody does.
    Trusted,
}

impl Replays {
    /// By the `replay_auth` of a policy.
    pub(super) fn of(policy: &Section<'_>) -> Self {
        Self::by(policy.find("replay_auth").map(|(node, _)| node.value))
    }

    /// By that of `[policy]`, before the section is opened.
    pub(super) fn of_defaults(root: &Section<'_>) -> Self {
        Self::by(match root.find("policy").map(|(node, _)| node.value) {
            Some(Value::Table(mut policy)) => policy.remove("replay_auth").map(|node| node.value),
            _ => None,
        })
    }

    fn by(replay_auth: Option<Value>) -> Self {
        match replay_auth {
            Some(Value::Text(path) | Value::Raw(path)) if !path.is_empty() => Self::Asked,
            _ => Self::Trusted,
        }
    }
}

/// Whether clients are asked for certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certificates {
    /// They are, or `[server]` cannot be read, which is a problem of its own.
    Asked,
    /// They are not.
    Unasked,
}

impl Certificates {
    /// By `[server.tls]`.
    pub(super) fn of(server: Option<&Server>) -> Self {
        match server.map(|server| server.tls.as_ref().map(|tls| &tls.client_auth)) {
            Some(None | Some(ClientAuth::Off)) => Self::Unasked,
            None | Some(Some(ClientAuth::Optional(_) | ClientAuth::Required(_))) => Self::Asked,
        }
    }
}

/// Reads `[identity]`, or a route's own over it.
pub(super) fn identity(
    mut section: Section<'_>,
    verifiers: &Verifiers,
    certificates: Certificates,
    usage: Usage,
) -> Option<Identity> {
    let s = &mut section;
    let from = s.list("from", &["authorization"], caller_part);
    let rules = [
        ("reject", Some(MissingCaller::Reject)),
        ("anonymous", Some(MissingCaller::Anonymous)),
    ];
    let missing = s.choice("missing", "reject", &rules);
    let trusted = s.flag("trust_unverified", false);
    let keys = keys(s.child("jwt", Show::Given), verifiers);
    let has = |wanted: fn(&CallerPart) -> bool| from.iter().flatten().any(wanted);
    if has(|part| *part == CallerPart::SigV4)
        && trusted == Some(false)
        && usage == Usage::InEffect(Replays::Trusted)
    {
        s.object(
            "from",
            "\"sigv4\" names its caller without proof, so that anybody could read another's stored answers: \
             it needs trust_unverified = true, or the route's replay_auth",
        );
    }
    if has(|part| *part == CallerPart::ClientCert)
        && certificates == Certificates::Unasked
        && matches!(usage, Usage::InEffect(_))
    {
        s.object(
            "from",
            "\"client-cert\" needs clients that show one: client_auth = \"required\" or \"optional\" in [server.tls]",
        );
    }
    let claims = has(|part| matches!(part, CallerPart::Jwt(_)));
    if claims && matches!((&keys, usage), (Ok(None), Usage::InEffect(_))) {
        s.object(
            "from",
            "\"jwt:CLAIM\" needs keys: jwks_file or jwks_url in [identity.jwt]",
        );
    }
    section.finish();
    let settings = keys.ok()?;
    Some(Identity {
        from: from?,
        missing: missing?,
        jwt: settings
            .filter(|_| claims && usage != Usage::Ground)
            .map(|settings| verifiers.index(settings)),
    })
}

/// Reads `[identity.jwt]`; `None`: it names no keys.
///
/// Of `jwks_file` and `jwks_url` the one that stands nearer to the route counts; both in one place are refused.
fn keys(mut section: Section<'_>, verifiers: &Verifiers) -> Result<Option<Settings>, Reported> {
    let s = &mut section;
    let (file, url) = (s.depth("jwks_file"), s.depth("jwks_url"));
    if file.is_some() && file == url {
        s.object("jwks_url", "jwks_file stands beside it: one of them");
    }
    let nearer = |one: Option<usize>, other: Option<usize>| match (one, other) {
        (Some(one), Some(other)) => one <= other,
        (one, _) => one.is_some(),
    };
    let mut source = None;
    let mut refused = false;
    if nearer(file, url) {
        let mut path = String::new();
        let keys = s.text_or("jwks_file", None, |text| {
            text.clone_into(&mut path);
            verifiers.file(text).map(Some)
        });
        refused |= keys.is_none();
        source = keys.flatten().map(|keys| Source::File {
            path: path.into(),
            keys,
        });
    } else {
        s.overruled("jwks_file");
    }
    if nearer(url, file) {
        let url = s.text_or("jwks_url", None, |text| plain_url(text).map(Some));
        refused |= url.is_none();
        source = url.flatten().map(Source::Url).or(source);
    } else {
        s.overruled("jwks_url");
    }
    let issuer = s.text_or("issuer", None, |text| named(text).map(Some));
    let audience = s.text_or("audience", None, |text| named(text).map(Some));
    section.finish();
    match (issuer, audience) {
        (Some(issuer), Some(audience)) if !refused => {
            let expected = Expected { issuer, audience };
            Ok(source.map(|source| Settings { source, expected }))
        }
        _ => Err(Reported),
    }
}

/// What the verifiers leave open.
pub(super) fn advise(report: &Report, verifiers: &[Settings]) {
    for Settings { source, expected } in verifiers {
        let advise = |why: &str| report.advise(format!("tokens by the keys of {source}: {why}"));
        if expected.issuer.is_none() {
            advise(
                "without issuer, \"iss\" is not checked: a subject is one caller, whoever issued its token",
            );
        }
        if expected.audience.is_none() {
            advise(
                "without audience, \"aud\" is not checked: a token that was made for another service is believed",
            );
        }
        if matches!(source, Source::File { keys, .. } if keys.skipped() > 0) {
            advise("some of its keys verify no tokens, and are left out");
        }
    }
}

fn named(text: &str) -> Result<String, Refusal> {
    if text.is_empty() {
        return Err(Refusal::wrong("it is empty")
            .allowed("what the claim must say; left out, it is not looked at"));
    }
    Ok(text.to_owned())
}

/// Reads a URL that the proxy itself calls: one without credentials and fragment.
pub(super) fn plain_url(text: &str) -> Result<Url, Refusal> {
    const URL: &str = "\"https://host:port/path\", \"http://host:port/path\"";
    let refuse = |why: &str| Refusal::wrong(why).allowed(URL);
    let Some((spoken @ ("http" | "https"), rest)) = text.split_once("://") else {
        return Err(refuse("it is no URL that this proxy can call"));
    };
    if rest.contains('#') {
        return Err(refuse("it has a fragment"));
    }
    let (host, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (authority, host) = host_and_port(host).map_err(refuse)?;
    let target = match target {
        "" => "/".to_owned(),
        query if query.starts_with('?') => format!("/{query}"),
        path => path.to_owned(),
    };
    let (scheme, usual) = if spoken == "https" {
        let name = ServerName::try_from(host.clone());
        let name = name.map_err(|_| refuse("its host is no name that a certificate can have"))?;
        (Scheme::Https(name), 443)
    } else {
        (Scheme::Http, 80)
    };
    match authority.port_u16() {
        Some(0) => Err(refuse("port 0 cannot be called")),
        port => Ok(Url {
            scheme,
            host,
            port: port.unwrap_or(usual),
            authority,
            target: target
                .parse()
                .map_err(|_| refuse("its path or query has characters that a URL has not"))?,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_a_port_and_what_is_asked_for() {
        for (text, host, port, target) in [
            ("http://id.test/jwks", "id.test", 80, "/jwks"),
            ("http://id.test:81", "id.test", 81, "/"),
            ("http://[::1]:81/a/b?c=d/e", "::1", 81, "/a/b?c=d/e"),
            ("http://id.test?k=v", "id.test", 80, "/?k=v"),
            ("https://id.test/jwks", "id.test", 443, "/jwks"),
            ("https://id_1.test.:81", "id_1.test.", 81, "/"),
            ("https://192.0.2.1:81/a", "192.0.2.1", 81, "/a"),
            ("https://[::1]", "::1", 443, "/"),
        ] {
            let url = plain_url(text).expect(text);
            assert_eq!(
                (url.host.as_str(), url.port, url.target.as_str()),
                (host, port, target)
            );
            let name = match &url.scheme {
                Scheme::Http => None,
                Scheme::Https(name) => Some(name.to_str()),
            };
            let secured = text.starts_with("https");
            let wanted = secured.then_some(host.trim_end_matches('.'));
            assert_eq!(name.as_deref(), wanted, "{text}");
        }
        for bad in [
            "",
            "id.test/jwks",
            "file:///jwks",
            "unix:/jwks",
            "http:///jwks",
            "http://u:p@id.test/jwks",
            "http://id.test:0/jwks",
            "http://id.test:99999/jwks",
            "http://id.test/jwks#a",
            "http://id.test/a b",
            "https:///jwks",
            "https://u:p@id.test/jwks",
            "https://id..test/jwks",
            "https://-/jwks",
            "https://192.0.2.256/jwks",
            "HTTPS://id.test/jwks",
            "https:/id.test/jwks",
        ] {
            assert!(plain_url(bad).is_err(), "{bad}");
        }
    }
}
