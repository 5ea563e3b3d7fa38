# The pipeline: PySpark, Java, the jars of its connectors. Build from the project's folder:
#   docker build -f infra/docker/pipeline.Dockerfile -t retail-loyalty-pipeline .
# BASE is any Debian 12; by digest (debian@sha256:…) the build repeats exactly.
ARG BASE=debian:bookworm-slim

# The same stage in the images that need jars, so that the builder makes it once (tests/unit/test_containers.py).
FROM ${BASE} AS build
COPY infra/docker/ca/ /tmp/ca/
# Java takes over only the first certificate of a file, and a bundle is one file.
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        ca-certificates openjdk-17-jre-headless python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
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
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless python3 \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --no-create-home --home-dir /data loyalty \
    && mkdir -p /data/checkpoints /data/parquet && chown -R loyalty /data
COPY --from=build /app/.venv /app/.venv
COPY --from=build /app/var/jars/spark /app/jars
WORKDIR /app
COPY pyproject.toml README.md ./
COPY schemas schemas
COPY services services
COPY pipelines pipelines
COPY infra/__init__.py infra/
COPY infra/docker/__init__.py infra/docker/healthy.py infra/docker/
RUN .venv/bin/pip install -q --no-deps --no-index --no-build-isolation --editable . \
    && .venv/bin/python -m compileall -q schemas services pipelines infra
ENV PATH=/app/.venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    LOYALTY_SPARK_JARS_DIR=/app/jars \
    LOYALTY_CHECKPOINT_DIR=/data/checkpoints \
    LOYALTY_EXPORT_DIR=/data/parquet \
    LOYALTY_METRICS_HOST=0.0.0.0
USER loyalty
WORKDIR /data
EXPOSE 9108
HEALTHCHECK --interval=10s --timeout=10s --start-period=240s --retries=6 \
    CMD ["python", "-m", "infra.docker.healthy", "http://127.0.0.1:9108/metrics", "loyalty_pipeline_ready 1"]
CMD ["python", "-m", "pipelines"]
