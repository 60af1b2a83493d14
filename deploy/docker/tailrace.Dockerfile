# A node in a container, built from a checkout:
#
#   docker build -f deploy/docker/tailrace.Dockerfile -t tailrace .
#
# The data directory is a volume: a container that is replaced finds every message again.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --no-install-recommends -y gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN python -m venv /opt/tailrace && TAILRACE_REQUIRE_COMPILED=1 /opt/tailrace/bin/pip install --no-cache-dir '/src[server]'

FROM python:3.11-slim-bookworm
# An empty data directory: a home that useradd makes has files of /etc/skel in it, and the node does not start there.
RUN useradd --system --uid 994 --home-dir /var/lib/tailrace --no-create-home tailrace \
  && install -d -o tailrace -g tailrace -m 750 /var/lib/tailrace
COPY --from=build /opt/tailrace /opt/tailrace
COPY deploy/docker/tailrace-docker.toml /etc/tailrace/tailrace.toml
ENV PATH=/opt/tailrace/bin:$PATH
USER tailrace
VOLUME /var/lib/tailrace
EXPOSE 5050 5051
# SIGTERM drains the workers; give it the time that the unit of systemd gives: --stop-timeout 45.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5051/readyz', timeout=4)"
ENTRYPOINT ["tailrace", "serve", "--config", "/etc/tailrace/tailrace.toml", "--data", "/var/lib/tailrace"]
