# Two images without Java: the command `loyalty`, and one API instance. They share layers.
# Build them in the project's folder:
#   docker build -f infra/docker/api.Dockerfile --target cli -t retail-loyalty-cli .
#   docker build -f infra/docker/api.Dockerfile -t retail-loyalty-api .
# BASE can be any Debian 12 image. For a reproducible build, name it by its digest (debian@sha256:…).
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
COPY infra/docker/ca/ /tmp/ca/
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && find /tmp/ca -name '*.crt' -exec awk \
        '/BEGIN CERTIFICATE/ { n++ } n { print > ("/usr/local/share/ca-certificates/given-" n ".crt") }' {} + \
    && update-ca-certificates
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app
RUN python3 -m venv .venv
COPY requirements/build.txt requirements/api.txt requirements/
RUN for file in build api; do \
        .venv/bin/pip install -q --no-build-isolation --use-pep517 --require-hashes -r requirements/$file.txt || exit 1; \
    done
# An editable installation records only the path to the packages. A later step copies the packages, so that a change of code
# does not repeat the installation.
COPY pyproject.toml README.md ./
RUN mkdir -p services && touch services/__init__.py \
    && .venv/bin/pip install -q --no-deps --no-index --no-build-isolation --editable . \
    && .venv/bin/pip uninstall -q -y -r requirements/build.txt pip

FROM ${BASE} AS cli
# Without a file of authorities in the settings, TLS needs the authorities of the system.
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
RUN useradd --system --uid 10001 --no-create-home --home-dir /data loyalty \
    && mkdir -p /data/state /data/keys /data/access /data/scrape && chown -R loyalty /data
COPY --from=build /app/.venv /app/.venv
WORKDIR /app
COPY schemas schemas
COPY services services
COPY infra/__init__.py infra/
COPY infra/docker/__init__.py infra/docker/healthy.py infra/docker/
RUN .venv/bin/python -m compileall -q schemas services infra
ENV PATH=/app/.venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1
USER loyalty
WORKDIR /data
# A command needs no health check: it ends when its work is done, and its exit status shows the result.
HEALTHCHECK NONE
ENTRYPOINT ["loyalty"]

FROM cli
USER root
WORKDIR /app
COPY api api
RUN .venv/bin/python -m compileall -q api
ENV LOYALTY_STATE_DIR=/data/state
USER loyalty
WORKDIR /data
EXPOSE 8080 9109 9110
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=6 \
    CMD ["sh", "-c", "exec python -m infra.docker.healthy http${LOYALTY_API_CERTIFICATE_FILE:+s}://127.0.0.1:8080/readyz"]
ENTRYPOINT []
# Each container is a separate application server. Other containers in the network reach it by its host name.
CMD ["sh", "-c", "exec python -m api --host 0.0.0.0 --application-server \"${LOYALTY_APPLICATION_SERVER:-http${LOYALTY_API_CERTIFICATE_FILE:+s}://$HOSTNAME:8080}\""]
