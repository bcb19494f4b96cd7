use super::*;

const NOW: Duration = Duration::from_secs(1);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn headers(stream: u32) -> Vec<u8> {
    frame(1, END_HEADERS | END_STREAM, stream, b"head")
}

/// A connection whose client has introduced itself.
fn introduced() -> Watch {
    with_heads_of(64 * 1024)
}

fn with_heads_of(max_head_bytes: usize) -> Watch {
    let mut watch = Watch::new(max_head_bytes);
    let introduction = [PREFACE.to_vec(), frame(4, 0, 0, &[0; 6])].concat();
    watch.received(&introduction, NOW).expect("one frame");
    watch
}

/// How many times `bytes` are taken at one moment, up to `most`.
fn taken(watch: &mut Watch, bytes: &[u8], now: Duration, most: u32) -> (u32, Option<Excess>) {
    for count in 0..most {
        if let Err(excess) = watch.received(bytes, now) {
            return (count, Some(excess));
        }
    }
    (most, None)
}

#[test]
fn the_introduction_is_owed_until_its_last_byte() {
    let mut watch = Watch::new(64 * 1024);
    let introduction = [PREFACE.to_vec(), frame(4, 0, 0, &[0; 6])].concat();
    for byte in introduction {
        assert_eq!(watch.waits_since(), Some(Duration::ZERO));
        watch.received(&[byte], NOW).expect("one frame");
    }
    assert_eq!(watch.waits_since(), None);
}

#[test]
fn nothing_comes_before_the_introduction() {
    for first in [headers(1), frame(6, 0, 0, &[0; 8]), frame(4, ACK, 0, b"")] {
        let mut watch = Watch::new(64 * 1024);
        let bytes = [PREFACE.to_vec(), first].concat();
        assert_eq!(watch.received(&bytes, NOW), Err(Excess::Unintroduced));
    }
}

#[test]
fn a_head_is_owed_from_its_first_byte_to_its_last() {
    let mut watch = introduced();
    let head = [
        frame(1, END_STREAM, 1, b"he"),
        frame(9, 0, 1, b"a"),
        frame(9, END_HEADERS, 1, b"d"),
    ]
    .concat();
    for (at, byte) in head.iter().enumerate() {
        let now = NOW + Duration::from_millis(at as u64);
        watch.received(&[*byte], now).expect("a head");
        let owed = (at + 1 < head.len()).then_some(NOW);
        assert_eq!(watch.waits_since(), owed, "byte {at}");
    }
}

#[test]
fn each_frame_has_a_time_of_its_own_and_a_part_of_a_body_has_none() {
    let mut watch = introduced();
    // Each read ends in the middle of a frame.
    let pings = frame(6, 0, 0, &[0; 8]).repeat(4);
    for (at, piece) in pings.chunks(20).enumerate() {
        let now = NOW * u32::try_from(at + 1).expect("few");
        watch.received(piece, now).expect("some pings");
        if let Some(since) = watch.waits_since() {
            assert_eq!(since, now);
        }
    }
    let mut watch = introduced();
    let data = frame(0, 0, 1, b"a body");
    watch.received(&data[..12], NOW).expect("data");
    assert_eq!(watch.waits_since(), None);
    watch.received(&data[12..], NOW).expect("data");
    watch.received(&data[..5], NOW).expect("data");
    assert_eq!(
        watch.waits_since(),
        Some(NOW),
        "nobody knows what it is yet"
    );
}

#[test]
fn requests_are_open_until_their_answers_have_ended() {
    let mut watch = introduced();
    for stream in [1, 3, 5, 7] {
        watch.received(&headers(stream), NOW).expect("a request");
    }
    watch.received(&headers(1), NOW).expect("trailers");
    assert_eq!((watch.open(), watch.idle_since()), (4, None));
    watch.sent(&frame(1, END_HEADERS, 1, b"head"), NOW);
    watch.sent(&frame(0, 0, 1, b"body"), NOW);
    assert_eq!(watch.open(), 4);
    watch.sent(&frame(0, END_STREAM, 1, b""), NOW);
    watch.sent(&frame(1, END_HEADERS | END_STREAM, 3, b"head"), NOW);
    watch.sent(&frame(3, 0, 5, &[0; 4]), NOW);
    assert_eq!((watch.open(), watch.idle_since()), (1, None));
    watch
        .received(&frame(3, 0, 7, &[0; 4]), 2 * NOW)
        .expect("one");
    assert_eq!((watch.open(), watch.idle_since()), (0, Some(2 * NOW)));
}

#[test]
fn continuations_of_one_head_are_bounded() {
    let mut watch = introduced();
    watch.received(&frame(1, 0, 1, b""), NOW).expect("a head");
    let more = frame(9, 0, 1, b"");
    assert_eq!(
        taken(&mut watch, &more, NOW, 100),
        (5, Some(Excess::Continuation))
    );
    let mut watch = with_heads_of(1024 * 1024);
    assert_eq!(
        taken(&mut watch, &more, NOW, 100),
        (80, Some(Excess::Continuation))
    );
}

#[test]
fn frames_that_carry_nothing_are_bounded_and_time_brings_them_back() {
    for bytes in [
        frame(4, 0, 0, b""),           // SETTINGS
        frame(6, 0, 0, &[0; 8]),       // PING
        frame(2, 0, 1, &[0; 5]),       // PRIORITY
        frame(8, 0, 0, &[0, 0, 0, 1]), // WINDOW_UPDATE
        frame(0, 0, 1, b""),           // empty DATA
        frame(3, 0, 9, &[0; 4]),       // RST_STREAM of nothing
        frame(0xbe, 0, 0, b"?"),
    ] {
        let mut watch = introduced();
        let (count, excess) = taken(&mut watch, &bytes, NOW, 10_000);
        assert_eq!(excess, Some(Excess::Control));
        assert!(
            (CONTROL_BURST - 1..=CONTROL_BURST + 200).contains(&count),
            "{count}"
        );
        let (later, _) = taken(&mut watch, &bytes, 2 * NOW, 10_000);
        assert_eq!(later, 200, "a second later");
    }
}

#[test]
fn progress_pays_for_the_frames_that_go_with_it() {
    let mut watch = introduced();
    let update = frame(8, 0, 0, &[0, 0, 0, 1]);
    let piece = frame(0, 0, 1, b"a piece of an answer");
    for _ in 0..50_000 {
        watch.sent(&piece, NOW);
        for _ in 0..3 {
            watch.received(&update, NOW).expect("it was earned");
        }
    }
    // Bodies cost nothing, for the windows bound them.
    assert_eq!(taken(&mut watch, &piece, NOW, 50_000), (50_000, None));
}

#[test]
fn requests_that_are_given_up_are_bounded_and_answers_earn_more() {
    let mut watch = introduced();
    let mut give_up = |stream: u32| {
        watch.received(&headers(stream), NOW)?;
        watch.received(&frame(3, 0, stream, &[0; 4]), NOW)
    };
    let ended = (0..10_000).find_map(|n| give_up(2 * n + 1).err().map(|excess| (n, excess)));
    let (count, excess) = ended.expect("it ends");
    assert_eq!(excess, Excess::Reset);
    assert!((RESET_BURST..=RESET_BURST + 60).contains(&count), "{count}");
    let mut watch = introduced();
    for n in 0..10_000 {
        let (kept, dropped) = (4 * n + 1, 4 * n + 3);
        watch.received(&headers(kept), NOW).expect("a request");
        watch.sent(&headers(kept), NOW);
        watch.received(&headers(dropped), NOW).expect("a request");
        watch
            .received(&frame(3, 0, dropped, &[0; 4]), NOW)
            .expect("one was answered");
    }
}

#[test]
fn the_last_word_stands_between_frames_only() {
    let mut watch = introduced();
    watch.received(&headers(7), NOW).expect("a request");
    let said = watch
        .last_word(Excess::Control)
        .expect("nothing is under way");
    let expected = [&7_u32.to_be_bytes()[..], &[0, 0, 0, 0xb]].concat();
    assert_eq!(said.to_vec(), frame(7, 0, 0, &expected));
    watch.sent(&frame(0, 0, 7, b"body")[..11], NOW);
    assert_eq!(watch.last_word(Excess::Control), None);
}

proptest::proptest! {
    #[test]
    fn however_the_bytes_are_cut_the_same_is_seen(
        frames in proptest::collection::vec((0_u8..12, 0_u8..8, 0_u32..12, 0_usize..40), 0..40),
        cuts in proptest::collection::vec(1_usize..50, 1..200),
    ) {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(4, 0, 0, b""));
        for (kind, flags, stream, length) in frames {
            bytes.extend(frame(kind, flags, stream, &vec![0; length]));
        }
        let mut whole = Watch::new(64 * 1024);
        let all = whole.received(&bytes, NOW);
        let mut cut = Watch::new(64 * 1024);
        let mut rest = bytes.as_slice();
        let mut cuts = cuts.iter().cycle();
        let mut in_pieces = Ok(());
        while !rest.is_empty() && in_pieces.is_ok() {
            let at = cuts.next().map_or(1, |at| (*at).min(rest.len()));
            let (piece, more) = rest.split_at(at);
            in_pieces = cut.received(piece, NOW);
            rest = more;
        }
        proptest::prop_assert_eq!(all, in_pieces);
        if all.is_ok() {
            proptest::prop_assert_eq!(whole.open, cut.open);
            proptest::prop_assert_eq!(whole.waits_since.is_some(), cut.waits_since.is_some());
        }
    }
}
