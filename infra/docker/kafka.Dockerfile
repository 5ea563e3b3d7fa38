# One Kafka broker (KRaft, one node), from the jars of infra/ivy.xml. Build from the project's folder:
#   docker build -f infra/docker/kafka.Dockerfile -t retail-loyalty-kafka .
# BASE is any Debian 12; by digest (debian@sha256:…) the build repeats exactly.
ARG BASE=debian:bookworm-slim

# The stage with which the pipeline's begins, so that the builder makes it once (tests/unit/test_containers.py).
FROM ${BASE} AS jars
COPY infra/docker/ca/ /tmp/ca/
# Java takes over only the first certificate of a file, and a bundle is one file. Its package links manual pages.
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        ca-certificates openjdk-17-jre-headless python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && find /tmp/ca -name '*.crt' -exec awk \
        '/BEGIN CERTIFICATE/ { n++ } n { print > ("/usr/local/share/ca-certificates/given-" n ".crt") }' {} + \
    && update-ca-certificates
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app
RUN python3 -m venv .venv
# pyspark comes as source only, so what builds it must be there before it.
COPY requirements/build.txt requirements/pipeline.txt requirements/
RUN for file in build pipeline; do \
        .venv/bin/pip install -q --no-build-isolation --use-pep517 --require-hashes -r requirements/$file.txt || exit 1; \
    done
COPY infra/__init__.py infra/setup.py infra/ivy.xml infra/jars.sha256 infra/
COPY infra/local/__init__.py infra/local/jars.py infra/local/java.py infra/local/
# Fails unless every jar has the checksum of infra/jars.sha256.
RUN .venv/bin/python -c 'from infra import setup; setup.jars.ensure(setup.java_home() / "bin" / "java", setup.ivy_jar())'

FROM ${BASE}
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
RUN useradd --system --uid 10001 --no-create-home --home-dir /data loyalty \
    && mkdir -p /data/kafka && chown -R loyalty /data
COPY --from=jars /app/var/jars/kafka /app/jars
COPY infra/kafka /app/kafka
COPY infra/docker/kafka.sh /app/kafka.sh
USER loyalty
WORKDIR /data
EXPOSE 9092 29092
# The broker opens its listeners as the last step of its start.
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=6 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9092"]
ENTRYPOINT ["bash", "/app/kafka.sh"]
