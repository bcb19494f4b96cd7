//! WebSocket: a client and a server that others wrote, and the proxy between them.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

use super::{Language, Program};
use crate::common::{Proxy, Upstream};

#[test]
fn a_conversation_passes_in_every_kind_of_message() {
    // Bound, so that nobody else gets the port; not listening, so that the program can.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("a socket option");
    let any = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    socket.bind(&any.into()).expect("a free port");
    let port = socket.local_addr().ok().and_then(|a| a.as_socket());
    let port = port.expect("an address").port().to_string();
    let settings = format!("upstream.url = 'http://127.0.0.1:{port}'");
    let proxy = Proxy::with(&Upstream::start(), &settings);
    for compression in ["", "deflate"] {
        let lines = Program::run(
            Language::Python,
            "websocket_talk.py",
            &proxy,
            &[&port, compression],
        );
        assert_eq!(
            lines,
            [
                "subprotocol chat",
                "text True",
                "binary True",
                "empty True True",
                "fragments one two three",
                "a mebibyte True",
                "text of a mebibyte True",
                "twenty 20",
                "pong",
                "server saw 4000 enough",
                "client saw 1008 not here",
                "abort 1006",
                "many True",
            ]
        );
    }
    proxy.await_metric("idem_proxy_connections", &[], 0.0);
}
