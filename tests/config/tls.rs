//! `[server.tls]` and `[upstream.tls]`: every file is read, and what does not belong together is refused.

use std::{fs, path::Path};

use idem_proxy::{
    cli::{self, Exit},
    tls::{ClientAuth, Pair, ServerFiles},
};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use crate::common::{ROUTE, assert_says, load, load_with, problems};

/// A folder with two certificates and their keys: `a.crt`, `a.key`, `b.crt`, `b.key`, and what is neither.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a", "b"] {
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let write = |kind: &str, text: String| {
            fs::write(folder.path().join(format!("{name}.{kind}")), text).expect("written");
        };
        write("crt", certificate.pem());
        write("key", key.serialize_pem());
    }
    let half = fs::read_to_string(folder.path().join("a.crt")).expect("a certificate");
    for (name, text) in [
        ("empty", ""),
        ("text", "this is no PEM"),
        ("half", &half[..half.len() / 2]),
        (
            "odd",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ),
    ] {
        fs::write(folder.path().join(name), text).expect("written");
    }
    fs::write(folder.path().join("binary"), [0xff; 99]).expect("written");
    folder
}

/// A section in which each value that is a name stands for the file of that name.
fn section(section: &str, folder: &Path, keys: &[(&str, &str)]) -> String {
    let line = |(key, value): &(&str, &str)| match *key {
        "client_auth" | "server_name" => format!("{key} = \"{value}\"\n"),
        _ => format!("{key} = {:?}\n", folder.join(value)),
    };
    let lines: Vec<String> = keys.iter().map(line).collect();
    format!("[{section}]\n{}", lines.concat())
}

#[test]
fn the_files_of_a_listener_are_taken_as_they_are_named() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    for (auth, expected) in [
        (&[][..], ClientAuth::Off),
        (&[("client_ca", "b.crt")], ClientAuth::Off),
        (
            &[("client_ca", "b.crt"), ("client_auth", "optional")],
            ClientAuth::Optional(path("b.crt")),
        ),
        (
            &[("client_ca", "b.crt"), ("client_auth", "required")],
            ClientAuth::Required(path("b.crt")),
        ),
    ] {
        let keys = [&[("cert", "a.crt"), ("key", "a.key")], auth].concat();
        let config = load(&section("server.tls", folder.path(), &keys));
        let expected = ServerFiles {
            pair: Pair {
                cert: path("a.crt"),
                key: path("a.key"),
            },
            client_auth: expected,
        };
        assert_eq!(config.server.tls, Some(expected));
    }
    assert_eq!(load("").server.tls, None);
}

#[test]
fn what_is_wrong_with_a_listener_is_said_with_its_key() {
    let folder = folder();
    let pair = [("cert", "a.crt"), ("key", "a.key")];
    let with = |more: &[(&'static str, &'static str)]| [&pair, more].concat();
    for (keys, said_of_it) in [
        (vec![("cert", "a.crt")], &["server.tls.key", "missing"][..]),
        (vec![("key", "a.key")], &["server.tls.cert", "missing"]),
        (
            vec![("cert", "none"), ("key", "a.key")],
            &["server.tls.cert", "cannot be read", "PEM"],
        ),
        (
            vec![("cert", "a.crt"), ("key", "none")],
            &["server.tls.key", "cannot be read"],
        ),
        (
            vec![("cert", "text"), ("key", "a.key")],
            &["server.tls.cert", "no certificate"],
        ),
        (
            vec![("cert", "empty"), ("key", "a.key")],
            &["server.tls.cert", "no certificate"],
        ),
        (
            vec![("cert", "half"), ("key", "a.key")],
            &["server.tls.cert", "no PEM"],
        ),
        (
            vec![("cert", "binary"), ("key", "a.key")],
            &["server.tls.cert"],
        ),
        (vec![("cert", "odd"), ("key", "a.key")], &["server.tls"]),
        (
            vec![("cert", "a.key"), ("key", "a.key")],
            &["server.tls.cert", "no certificate"],
        ),
        (
            vec![("cert", "a.crt"), ("key", "a.crt")],
            &["server.tls.key", "no private key"],
        ),
        (
            vec![("cert", "a.crt"), ("key", "text")],
            &["server.tls.key", "no private key"],
        ),
        (
            vec![("cert", "a.crt"), ("key", "b.key")],
            &["server.tls.key", "does not go with", "a.crt"],
        ),
        (
            with(&[("client_auth", "required")]),
            &["server.tls.client_auth", "client_ca"],
        ),
        (
            with(&[("client_auth", "optional")]),
            &["server.tls.client_auth", "client_ca"],
        ),
        (
            with(&[("client_auth", "always"), ("client_ca", "b.crt")]),
            &["server.tls.client_auth", "off, optional, required"],
        ),
        (
            with(&[("client_ca", "none")]),
            &["server.tls.client_ca", "cannot be read"],
        ),
        (
            with(&[("client_ca", "odd")]),
            &["server.tls.client_ca", "certificate"],
        ),
    ] {
        let said = problems(&section("server.tls", folder.path(), &keys));
        assert_eq!(said.lines().count(), 1, "{keys:?}: {said}");
        assert_says(&said, said_of_it);
    }
    let said = problems(&section("server.tls", folder.path(), &[]));
    assert_says(&said, &["server.tls.cert", "server.tls.key"]);
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn what_is_wrong_with_an_upstream_is_said_with_its_key() {
    let folder = folder();
    for (url, keys, said_of_it) in [
        (
            "http://a.test",
            &[("ca", "a.crt")][..],
            &["upstream.tls", "not https"][..],
        ),
        (
            "unix:/run/a.sock",
            &[("ca", "a.crt")],
            &["upstream.tls", "not https"],
        ),
        (
            "https://a.test",
            &[("ca", "none")],
            &["upstream.tls.ca", "cannot be read"],
        ),
        (
            "https://a.test",
            &[("ca", "text")],
            &["upstream.tls.ca", "no certificate"],
        ),
        (
            "https://a.test",
            &[("cert", "a.crt")],
            &["upstream.tls.cert", "key"],
        ),
        (
            "https://a.test",
            &[("key", "a.key")],
            &["upstream.tls.key", "cert"],
        ),
        (
            "https://a.test",
            &[("ca", "a.crt"), ("cert", "a.crt"), ("key", "b.key")],
            &["upstream.tls.key", "does not go with"],
        ),
        (
            "https://a.test",
            &[("server_name", "-")],
            &["upstream.tls.server_name", "no host name"],
        ),
    ] {
        let text = format!(
            "[upstream]\nurl = \"{url}\"\n{}",
            section("upstream.tls", folder.path(), keys)
        );
        let said = problems(&text);
        assert_eq!(said.lines().count(), 1, "{url} {keys:?}: {said}");
        assert_says(&said, said_of_it);
    }
}

#[test]
fn callers_by_certificate_need_clients_that_show_one() {
    let folder = folder();
    let tls = |auth| {
        let keys = [
            ("cert", "a.crt"),
            ("key", "a.key"),
            ("client_ca", "b.crt"),
            ("client_auth", auth),
        ];
        section("server.tls", folder.path(), &keys)
    };
    let from = "[identity]\nfrom = [\"client-cert\"]\n";
    for server in [String::new(), tls("off")] {
        let own = ROUTE.replacen('\n', "", 1) + "identity = { from = [\"client-cert\"] }\n";
        for text in [from.to_owned(), format!("{from}{ROUTE}"), own] {
            let said = problems(&format!("{server}{text}"));
            assert_eq!(said.lines().count(), 1, "{said}");
            assert_says(
                &said,
                &[
                    "identity.from",
                    "client-cert",
                    "client_auth",
                    "[server.tls]",
                ],
            );
        }
        // Who calls a route without keys is never asked.
        load(&format!("{server}{from}{ROUTE}key = \"off\"\n"));
    }
    for auth in ["optional", "required"] {
        load(&format!("{}{from}{ROUTE}", tls(auth)));
    }
    // What is wrong with the listener is said, and nothing that follows from it.
    let said = problems(&format!("{}{from}{ROUTE}", tls("always")));
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn check_ends_with_2_and_nothing_of_a_key_is_shown() {
    let folder = folder();
    let secret = fs::read_to_string(folder.path().join("a.key")).expect("a key");
    let secret = secret.lines().nth(1).expect("base64");
    let run = |text: &str| {
        let path = folder.path().join("proxy.toml");
        fs::write(&path, text).expect("written");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let none = Vec::<(String, String)>::new;
        let exits = [
            cli::check(&path, none(), &mut out, &mut err).expect("written"),
            cli::print_config(&path, none(), &mut out, &mut err).expect("written"),
        ];
        let said = String::from_utf8([out, err].concat()).expect("UTF-8");
        assert!(!said.contains(secret), "{said}");
        (exits, said)
    };
    let good = section(
        "server.tls",
        folder.path(),
        &[("cert", "a.crt"), ("key", "a.key")],
    );
    let (exits, said) = run(&good);
    assert_eq!(exits, [Exit::Done; 2]);
    assert_says(&said, &["a.key"]);
    let loaded = load_with(&good, &[]).expect("valid");
    assert!(!format!("{loaded:?}").contains(secret));

    for keys in [
        [("cert", "b.crt"), ("key", "a.key")],
        [("cert", "a.key"), ("key", "a.key")],
    ] {
        let (exits, _) = run(&section("server.tls", folder.path(), &keys));
        assert_eq!(exits[0], Exit::Refused);
    }
}
