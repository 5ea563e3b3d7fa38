# One Kafka broker (KRaft, one node) with the jars of infra/ivy.xml. Build it in the project's folder:
#   docker build -f infra/docker/kafka.Dockerfile -t retail-loyalty-kafka .
# BASE can be any Debian 12 image. For a reproducible build, name it by its digest (debian@sha256:…).
ARG BASE=debian:bookworm-slim

# pipeline.Dockerfile begins with the same stage, so Docker builds it once (checked by tests/unit/test_containers.py).
FROM ${BASE} AS jars
COPY infra/docker/ca/ /tmp/ca/
# Java imports only the first certificate of a file, so awk splits bundles into one file per certificate.
# The Java package creates links to manual pages, so their folder must exist.
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
# pyspark is published only as source, so its build tools must be installed first.
COPY requirements/build.txt requirements/pipeline.txt requirements/
RUN for file in build pipeline; do \
        .venv/bin/pip install -q --no-build-isolation --use-pep517 --require-hashes -r requirements/$file.txt || exit 1; \
    done
COPY infra/__init__.py infra/setup.py infra/ivy.xml infra/jars.sha256 infra/
COPY infra/local/__init__.py infra/local/folders.py infra/local/jars.py infra/local/java.py infra/local/
# Fails if a jar does not have the checksum in infra/jars.sha256. A folder with this file counts as a checkout, so the jars
# come to /app/var. The real file would make Docker repeat this step after each change of it.
RUN touch pyproject.toml && .venv/bin/python -c 'from infra import setup; setup.jars.STACK.ensure(setup.java_home() / "bin" / "java", setup.ivy_jar())'

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
# The broker opens its listeners in the last step of its start.
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=6 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9092"]
ENTRYPOINT ["bash", "/app/kafka.sh"]
