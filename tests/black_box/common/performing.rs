//! How the upstream carries a step of its script out: what it writes, and how it ends.

use std::{
    io::Write,
    net::TcpStream,
    time::{Duration, Instant},
};

use super::{
    PATIENCE,
    script::{Act, How, Pause, Reply, Step},
    upstream::Seen,
    wire::{Framing, Wire, chunk},
};

/// What becomes of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Keep,
    Close,
}

/// Does what the step says; `None`: the proxy was gone before the end.
pub(super) fn perform(step: &Step, wire: &mut Wire, seen: &Seen, execution: u64) -> Option<Next> {
    if step.gate.as_ref().is_some_and(|gate| !gate.pass()) {
        return None;
    }
    std::thread::sleep(step.delay);
    let next = match &step.act {
        Act::Answer(reply) => answer(reply, wire.stream(), seen, execution).ok()?,
        Act::Bytes(bytes) => {
            wire.write(bytes).ok()?;
            Next::Close
        }
        Act::Reset => {
            let socket = socket2::SockRef::from(wire.stream());
            let _ = socket.set_linger(Some(Duration::ZERO));
            Next::Close
        }
        Act::Hang => {
            // Nothing more is sent; this ends when the proxy or the test closes the connection.
            let _ = wire.head(Instant::now() + PATIENCE * 4);
            return None;
        }
    };
    if step.early {
        // A plain close would reset the answer away, for the rest of the body is still coming.
        wire.finish_writing();
        let _ = wire.body(
            Framing::Close,
            Instant::now() + Duration::from_secs(5),
            &mut |_| {},
        );
        return Some(Next::Close);
    }
    Some(next)
}

fn answer(
    reply: &Reply,
    mut out: &TcpStream,
    seen: &Seen,
    execution: u64,
) -> std::io::Result<Next> {
    for head in &reply.interim {
        out.write_all(head)?;
    }
    let status = reply
        .status
        .unwrap_or(if seen.method == "POST" { 201 } else { 200 });
    let bodyless = matches!(status, 204 | 304) || seen.method == "HEAD";
    let body = match &reply.body {
        Some(body) => body.clone(),
        None if matches!(status, 204 | 304) => Vec::new(),
        None => format!("{{\"execution\":{execution}}}").into_bytes(),
    };
    let asked = seen
        .head
        .fields
        .all("connection")
        .join(",")
        .to_ascii_lowercase();
    let close = reply.then_close || matches!(reply.framing, How::Close) || asked.contains("close");
    let next = if close { Next::Close } else { Next::Keep };
    out.write_all(&head(reply, status, body.len(), execution))?;
    if bodyless {
        return Ok(next);
    }
    if let Some(cut) = reply.cut_after {
        let part = &body[..cut.min(body.len())];
        let chunked = matches!(reply.framing, How::Chunked);
        out.write_all(&if chunked { chunk(part) } else { part.to_vec() })?;
        return Ok(Next::Close);
    }
    match &reply.framing {
        How::Length | How::Close => out.write_all(&body)?,
        How::Chunked => out.write_all(&chunk(&body))?,
        How::Pieces(pieces) => {
            for (pause, piece) in pieces {
                match pause {
                    Pause::Time(time) => std::thread::sleep(*time),
                    Pause::Gate(gate) => {
                        gate.pass();
                    }
                }
                out.write_all(&chunk(piece))?;
            }
        }
        How::Endless(size) => {
            let block = vec![b'z'; 64 * 1024];
            let mut left = *size;
            while left > 0 {
                let count = usize::try_from(left).map_or(block.len(), |left| left.min(block.len()));
                out.write_all(&block[..count])?;
                left -= count as u64;
            }
        }
    }
    if matches!(reply.framing, How::Chunked | How::Pieces(_)) {
        let lines = reply
            .trailers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        out.write_all(format!("0\r\n{}\r\n", lines.collect::<String>()).as_bytes())?;
    }
    Ok(next)
}

fn head(reply: &Reply, status: u16, size: usize, execution: u64) -> Vec<u8> {
    let mut fields = reply.fields.clone();
    let named = |name: &str| {
        reply
            .fields
            .iter()
            .any(|(n, _)| n.eq_ignore_ascii_case(name))
    };
    let mut add = |name: &str, value: String| {
        if !named(name) {
            fields.push((name.into(), value.into_bytes()));
        }
    };
    if !reply.only_these_fields {
        if !matches!(status, 204 | 304) {
            add("Content-Type", "application/json".into());
        }
        add("Location", format!("/things/{execution}"));
        add("ETag", format!("\"v{execution}\""));
        add("X-Execution", execution.to_string());
        add("Set-Cookie", format!("session={execution}"));
    }
    match &reply.framing {
        How::Length if matches!(status, 204 | 304) => {}
        How::Length => add("Content-Length", size.to_string()),
        How::Endless(size) => add("Content-Length", size.to_string()),
        How::Chunked | How::Pieces(_) => add("Transfer-Encoding", "chunked".into()),
        How::Close => add("Connection", "close".into()),
    }
    if !reply.trailers.is_empty() {
        let announced: Vec<_> = reply
            .trailers
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        add("Trailer", announced.join(", "));
    }
    let mut out = format!("HTTP/1.1 {status} Scripted\r\n").into_bytes();
    for (name, value) in &fields {
        out.extend_from_slice(format!("{name}: ").as_bytes());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}
