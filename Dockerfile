# The image of idem-proxy: one binary, no shell, no root, nothing written.
#
#   docker build -t idem-proxy:0.1.0 .
#   docker run --read-only -p 8080:8080 -v "$PWD/proxy.toml:/etc/idem-proxy/proxy.toml:ro" idem-proxy:0.1.0
#
# In a container proxy.toml has to listen on all addresses: server.listen = "0.0.0.0:8080". SIGTERM drains: give docker stop
# at least drain_delay and drain_timeout (docker run --stop-timeout 35), for after its 10 s it kills.

# Both stages are Debian 12, so that the binary meets the C library that it was linked against.
FROM rust:1.95-bookworm AS build
WORKDIR /build
COPY . .
RUN cargo build --release --locked --bin idem-proxy

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /build/target/release/idem-proxy /usr/local/bin/idem-proxy
COPY --from=build /build/LICENSE /usr/share/doc/idem-proxy/LICENSE
# distroless' "nonroot", by number so that Kubernetes can see that it is not root.
USER 65532:65532
# Clients; metrics and health.
EXPOSE 8080 9090
# No HEALTHCHECK: whoever runs it asks /livez and /readyz from outside, as Kubernetes does, which takes no notice of one; and
# the image has neither a shell nor a client for it.
ENTRYPOINT ["/usr/local/bin/idem-proxy"]
CMD ["--config", "/etc/idem-proxy/proxy.toml"]
