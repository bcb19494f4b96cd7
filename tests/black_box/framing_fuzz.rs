//! Requests gone wrong at random: what of them reaches the upstream has one reading, and no more of it than was answered.

use crate::{
    common::{Framing, PATIENCE, Proxy, Request, Upstream, executed, key},
    hostile::Dice,
};

/// So many streams, in groups that run at the same time.
const GROUPS: usize = 20;
const IN_A_GROUP: usize = 50;

#[test]
fn what_reaches_the_upstream_has_one_reading() {
    let upstream = Upstream::start();
    // Whatever a stream leaves unfinished ends soon.
    let proxy = Proxy::with(
        &upstream,
        "server.head_timeout = '300ms'\nserver.body_timeout = '300ms'\nserver.keepalive_timeout = '300ms'",
    );
    let (mut clean, mut refused) = (0, 0);
    for group in 0..GROUPS {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (group as u64 + 1));
        let streams: Vec<_> = (0..IN_A_GROUP)
            .map(|number| {
                let tag = format!("/tag-{group}-{number}-end");
                let stream = dice.stream();
                let tagged = stream
                    .windows(5)
                    .position(|five| five == b"/free")
                    .map(|at| {
                        let (before, after) = stream.split_at(at);
                        [before, tag.as_bytes(), &after[5..]].concat()
                    });
                (tag, tagged.unwrap_or(stream))
            })
            .collect();
        let mut clients: Vec<_> = streams
            .iter()
            .map(|(_, stream)| {
                let mut client = proxy.client();
                let _ = client.try_say(stream);
                client
            })
            .collect();
        for ((tag, stream), client) in streams.iter().zip(&mut clients) {
            let all = client.everything();
            let heads = all.matches("HTTP/1.1 ").count() - all.matches("HTTP/1.1 100 ").count();
            refused += all.matches("HTTP/1.1 400 ").count();
            clean += all.matches("HTTP/1.1 20").count();
            let shown = stream.escape_ascii();
            let seen = upstream.seen();
            let arrived = seen
                .iter()
                .filter(|seen| seen.target.contains(tag.as_str()));
            assert!(arrived.count() <= heads, "{shown}: {all}");
        }
    }
    for seen in upstream.seen() {
        let raw = &seen.head.raw;
        let alone = |at: usize| raw[at] == b'\n' && (at == 0 || raw[at - 1] != b'\r');
        assert!(!(0..raw.len()).any(alone), "{seen}");
        assert!(seen.head.framing(Framing::Empty).is_ok(), "{seen}");
        assert_eq!(seen.all("Host").len(), 1, "{seen}");
    }
    assert_eq!(upstream.garbled(), 0);
    // The dice are fair: some of all kinds came.
    assert!(
        clean > 100 && refused > 100,
        "{clean} clean, {refused} refused"
    );
    executed(
        proxy
            .client()
            .ask(&Request::order(&key()))
            .try_answer(PATIENCE)
            .expect("an answer"),
    );
}
