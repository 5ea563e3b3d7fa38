# The pipeline: PySpark, Java, the jars of its connectors; also the master and the workers of a Spark cluster.
# Build from the project's folder:
#   docker build -f infra/docker/pipeline.Dockerfile -t retail-loyalty-pipeline .
# BASE is any Debian 12; by digest (debian@sha256:…) the build repeats exactly.
ARG BASE=debian:bookworm-slim

# The stage of the Kafka image, so that the builder makes it once (tests/unit/test_containers.py).
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

FROM jars AS build
# Installed is only the path to the packages: they are copied last, so that a change of code installs nothing.
# python/lib is PySpark once more, as archives that Spark puts before the installed one. Nothing in them is compiled: a
# Python worker would start with five times the processor time, and Spark waits ten seconds for one.
COPY pyproject.toml README.md ./
RUN mkdir -p services && touch services/__init__.py \
    && .venv/bin/pip install -q --no-deps --no-index --no-build-isolation --editable . \
    && .venv/bin/pip uninstall -q -y -r requirements/build.txt pip \
    && cd .venv/lib/python3*/site-packages/pyspark && rm -r jars/connect-repl examples python/lib

FROM ${BASE}
# Two steps, so that the first is the Kafka image's too.
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
RUN useradd --system --uid 10001 --no-create-home --home-dir /data loyalty \
    && mkdir -p /data/checkpoints /data/parquet /data/archive /data/keys && chown -R loyalty /data \
    && ln -s /app/infra/docker/spark.sh /usr/local/bin/driver && ln -s /app/infra/docker/spark.sh /usr/local/bin/executor
COPY --from=build /app/.venv /app/.venv
COPY --from=jars /app/var/jars/spark /app/jars
WORKDIR /app
COPY schemas schemas
COPY services services
COPY pipelines pipelines
COPY infra/__init__.py infra/
COPY infra/docker/__init__.py infra/docker/healthy.py infra/docker/pipeline.sh infra/docker/spark.sh infra/docker/
RUN .venv/bin/python -m compileall -q schemas services pipelines infra
ENV PATH=/app/.venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    LOYALTY_SPARK_JARS_DIR=/app/jars \
    LOYALTY_CHECKPOINT_DIR=/data/checkpoints \
    LOYALTY_EXPORT_DIR=/data/parquet \
    LOYALTY_ARCHIVE_DIR=/data/archive \
    LOYALTY_METRICS_HOST=0.0.0.0
USER loyalty
WORKDIR /data
EXPOSE 9108 7077 8080
HEALTHCHECK --interval=10s --timeout=10s --start-period=240s --retries=6 \
    CMD ["python", "-m", "infra.docker.healthy", "http://127.0.0.1:9108/metrics", "loyalty_pipeline_ready 1"]
CMD ["bash", "/app/infra/docker/pipeline.sh"]
