//! Where records are kept.

use std::path::Path;

use idem_proxy::config::{RedisServers, RedisUrl, StoreKind};

use crate::common::{ROUTE, assert_says, load, load_with, problems, problems_with};

#[test]
fn the_disk_store_has_a_folder_and_a_bound() {
    let store = load("[store]\nkind = \"disk\"").store;
    assert_eq!(store.kind, StoreKind::Disk);
    assert_eq!(store.disk.path, Path::new("/var/lib/idem-proxy"));
    assert_eq!(store.disk.max_bytes, 4 << 30);
    assert!(store.seal.is_none());
    let variables = [
        ("IDEM_PROXY_STORE__KIND", "disk"),
        ("IDEM_PROXY_STORE__DISK__PATH", "/data"),
        ("IDEM_PROXY_STORE__DISK__MAX_BYTES", "1MiB"),
    ];
    let loaded = load_with(ROUTE, &variables).expect("valid");
    assert_eq!(loaded.config.store.disk.path, Path::new("/data"));
    assert_eq!(loaded.config.store.disk.max_bytes, 1 << 20);
    for (text, words) in [
        (
            "max_bytes = \"1023KiB\"",
            ["max_bytes", "too small", "1MiB"],
        ),
        ("max_bytes = 5", ["max_bytes", "not a string", "max_bytes"]),
        ("path = \"\"", ["path", "empty", "a folder"]),
    ] {
        assert_says(&problems(&format!("[store.disk]\n{text}")), &words);
    }
}

#[test]
fn keys_of_encryption_are_read_with_the_configuration_and_never_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys");
    let path = file.to_str().expect("UTF-8");
    let text = |kind: &str| {
        format!("[store]\nkind = \"{kind}\"\nencryption_key_file = \"{path}\"\n{ROUTE}")
    };
    assert_says(
        &problems(&text("disk")),
        &["store.encryption_key_file", path, "cannot be read"],
    );
    std::fs::write(&file, "c2VjcmV0\n").expect("a file");
    let said = problems(&text("disk"));
    assert_says(&said, &["store.encryption_key_file", "line 1", "base64"]);
    assert!(!said.contains("c2VjcmV0"), "{said}");

    let (new, old) = ("QUFB".repeat(10) + "QUE=", "QkJC".repeat(10) + "QkI=");
    std::fs::write(&file, format!("{new}\n{old}\n")).expect("a file");
    let loaded = load_with(&text("disk"), &[]).expect("valid");
    assert_eq!(loaded.warnings, [""; 0]);
    let shown = format!("{:?}{}", loaded.config, loaded.printed);
    assert!(
        shown.contains(path) && !shown.contains(&new[..8]),
        "{shown}"
    );
    let keys = loaded.config.store.seal.expect("keys");
    assert!(keys.iter().eq([&[b'A'; 32], &[b'B'; 32]]));

    // Where nothing is kept outside the process, it has no effect, and that is said.
    let loaded = load_with(&text("memory"), &[]).expect("valid");
    assert_says(
        &loaded.warnings.join("\n"),
        &["encryption_key_file", "no effect", "memory"],
    );
    let missing = [("IDEM_PROXY_STORE__ENCRYPTION_KEY_FILE", "/none")];
    assert_says(&problems_with("", &missing), &["cannot be read", "/none"]);
}

#[test]
fn the_redis_store_has_one_server_and_its_secret_stays_hidden() {
    let chosen = |more: &str| format!("[store]\nkind = \"redis\"\n[store.redis]\n{more}\n{ROUTE}");
    let store = load(&chosen("")).store;
    assert_eq!(store.kind, StoreKind::Redis);
    assert_eq!(single(&store.redis.servers), "redis://127.0.0.1:6379");
    assert_eq!(store.redis.timeout, std::time::Duration::from_millis(500));
    assert!(!store.redis.allow_eviction);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("url");
    let path = file.to_str().expect("UTF-8");
    let named = chosen(&format!("url_file = \"{path}\"\nallow_eviction = true"));
    assert_says(&problems(&named), &["url_file", path, "cannot be read"]);
    std::fs::write(&file, "hunter2\n").expect("a file");
    let said = problems(&named);
    assert_says(&said, &["url_file", "no URL of a Redis server"]);
    assert!(!said.contains("hunter2"), "{said}");
    let url = "rediss://user:hun%20ter2@h:7000/3";
    std::fs::write(&file, format!("{url}\n")).expect("a file");
    let store = load(&named).store;
    assert_eq!(single(&store.redis.servers), url);
    assert!(store.redis.allow_eviction);
    let shown = format!("{:?}", store.redis);
    assert!(shown.contains("rediss://user:***@h:7000/3"), "{shown}");
    let printed = load_with(&named, &[]).expect("valid").printed.to_string();
    let redis = printed.split("[store.redis]\n").nth(1).expect("a table");
    let redis = redis.split("\n\n").next().expect("its keys");
    assert!(!redis.lines().any(|it| it.starts_with("url =")), "{redis}");
    let again = load_with(&printed, &[]).expect("what is printed is a configuration");
    assert_eq!(again.config.store.redis.servers, store.redis.servers);
    assert_eq!(again.printed.to_string(), printed);
    for (more, words) in [
        ("url = []", ["store.redis.url", "takes one URL", "single"]),
        (
            "url = [\"redis://a\", \"redis://b\"]",
            ["store.redis.url", "takes one URL", "single"],
        ),
        (
            "url = \"http://a\"",
            ["store.redis.url", "redis://", "rediss://"],
        ),
        (
            "url = \"redis://a/x\"",
            ["store.redis.url", "no URL", "/db"],
        ),
        (
            "url = \"redis://a\"\nurl_file = \"f\"",
            ["url_file", "url is given too", "one of them"],
        ),
    ] {
        assert_says(&problems(&chosen(more)), &words);
    }
}

fn single(servers: &RedisServers) -> &str {
    match servers {
        RedisServers::Single(url) => url.expose(),
        RedisServers::Cluster(_) | RedisServers::Sentinel { .. } => "several",
    }
}

/// What the sentinels call the server, and the URLs of them or of nodes.
fn several(servers: RedisServers) -> (String, Vec<RedisUrl>) {
    match servers {
        RedisServers::Single(url) => ("single".into(), vec![url]),
        RedisServers::Cluster(nodes) => ("cluster".into(), nodes),
        RedisServers::Sentinel { sentinels, master } => (master, sentinels),
    }
}

#[test]
fn the_redis_store_is_one_server_or_a_cluster_or_what_sentinels_name() {
    let chosen = |more: &str| format!("[store]\nkind = \"redis\"\n[store.redis]\n{more}\n{ROUTE}");
    let cluster = "topology = \"cluster\"\nurl = [\"rediss://u:p@a:7000\", \"rediss://u:p@b\"]";
    let nodes = several(load(&chosen(cluster)).store.redis.servers).1;
    let urls: Vec<_> = nodes.iter().map(|url| url.expose().to_owned()).collect();
    assert_eq!(urls, ["rediss://u:p@a:7000", "rediss://u:p@b"]);
    let ports: Vec<_> = nodes.iter().map(RedisUrl::has_port).collect();
    assert_eq!(ports, [true, false]);
    assert!(matches!(
        load(&chosen("topology = \"cluster\"")).store.redis.servers,
        RedisServers::Cluster(nodes) if nodes.len() == 1
    ));
    for (url, master, ports) in [
        (
            "[\"redis://a\", \"redis://[::1]:26380\"]",
            "mymaster",
            [false, true],
        ),
        (
            "[\"redis://:p@a/3?master=or-ders.1\", \"redis://:p@b:1/3?master=or-ders.1\"]",
            "or-ders.1",
            [false, true],
        ),
    ] {
        let text = chosen(&format!("topology = \"sentinel\"\nurl = {url}"));
        let (named, sentinels) = several(load(&text).store.redis.servers);
        assert_eq!(named, master);
        let given: Vec<_> = sentinels.iter().map(RedisUrl::has_port).collect();
        assert_eq!(given, ports);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("urls");
    std::fs::write(
        &file,
        "redis://u:hunter2@a:1\n\nredis://u:hunter2@b:2\n  redis://u:hunter2@c:3",
    )
    .expect("a file");
    let path = file.to_str().expect("UTF-8");
    let named = format!("topology = \"cluster\"\nurl_file = \"{path}\"");
    let store = load(&chosen(&named)).store;
    assert!(matches!(&store.redis.servers, RedisServers::Cluster(nodes) if nodes.len() == 3));
    let shown = format!("{:?} {}", store.redis, store.redis.servers.shown());
    assert!(
        shown.contains("u:***@c:3") && !shown.contains("hunter2"),
        "{shown}"
    );
    let alone = chosen(&format!("url_file = \"{path}\""));
    assert_says(&problems(&alone), &["url_file", "takes one URL", "single"]);
    std::fs::write(&file, "\n \n").expect("a file");
    assert_says(&problems(&alone), &["url_file", path, "empty"]);
}

#[test]
fn urls_that_do_not_fit_their_topology_are_refused() {
    let two = |topology: &str, one: &str, other: &str| {
        let text = format!("topology = \"{topology}\"\nurl = [\"{one}\", \"{other}\"]");
        problems(&format!(
            "[store]\nkind = \"redis\"\n[store.redis]\n{text}\n{ROUTE}"
        ))
    };
    for topology in ["cluster", "sentinel"] {
        for (one, other) in [
            ("redis://a", "rediss://b"),
            ("redis://u:p@a", "redis://v:p@b"),
            ("redis://u:hunter2@a", "redis://u:hunter3@b"),
            ("redis://a", "redis://b/1"),
            ("redis://a", "redis://b?protocol=resp2"),
            ("rediss://a", "rediss://b#insecure"),
        ] {
            let said = two(topology, one, other);
            assert_says(&said, &["store.redis.url", "differ", "the same in each"]);
            assert!(!said.contains("hunter"), "{said}");
        }
        let said = two(topology, "redis+unix:///a", "redis+unix:///a");
        assert_says(&said, &["store.redis.url", "Unix socket", "single"]);
    }
    let said = two("cluster", "redis://a/2", "redis://b/2");
    assert_says(&said, &["store.redis.url", "no database but 0"]);
    for name in ["", "a%20b", "a b"] {
        let url = format!("redis://a?master={name}");
        assert_says(&two("sentinel", &url, &url), &["store.redis.url", "master"]);
    }
    let url = "redis://a?master=mymaster";
    assert_says(&two("cluster", url, url), &["store.redis.url", "sentinel"]);
    for topology in ["cluster", "sentinel"] {
        let text = format!("topology = \"{topology}\"\nurl = []");
        let text = format!("[store]\nkind = \"redis\"\n[store.redis]\n{text}\n{ROUTE}");
        assert_says(&problems(&text), &["store.redis.url", "at least one"]);
    }
}
