# syntax=docker/dockerfile:1
# The release binary on a base without a shell, as a user without rights. It needs no writable path:
#   docker run --read-only --cap-drop ALL -v ./reprise.toml:/etc/reprise/reprise.toml:ro -p 127.0.0.1:9464:9464 reprise
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make perl pkg-config zlib1g-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# OpenSSL is built into the Kafka client (ssl-vendored): the base image has none.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin reprise --features ssl-vendored && cp target/release/reprise /reprise

# The same Debian as the build: glibc and zlib are linked to.
FROM debian:bookworm-slim AS zlib
RUN mkdir /out && cp /lib/*-linux-gnu/libz.so.1 /out/

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=zlib /out/libz.so.1 /usr/lib/
COPY --from=build /reprise /usr/local/bin/reprise
ENV REPRISE_CONFIG=/etc/reprise/reprise.toml
USER 65532:65532
EXPOSE 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/reprise"]
CMD ["live"]
