# The pipeline: PySpark, Java and the jars of the connectors. The master and the workers of a Spark cluster use it too.
# Build it in the project's folder:
#   docker build -f infra/docker/pipeline.Dockerfile -t retail-loyalty-pipeline .
# BASE can be any Debian 12 image. For a reproducible build, name it by its digest (debian@sha256:…).
ARG BASE=debian:bookworm-slim

# kafka.Dockerfile begins with the same stage, so Docker builds it once (checked by tests/unit/test_containers.py).
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

FROM jars AS build
# An editable installation records only the path to the packages. A later step copies the packages, so that a change of code
# does not repeat the installation.
# python/lib contains archives with a second copy of PySpark, which Spark prefers to the installed one. The archives have no
# compiled modules, so a Python worker would need five times the processor time to start, and Spark waits only ten seconds.
COPY pyproject.toml README.md ./
RUN mkdir -p services && touch services/__init__.py \
    && .venv/bin/pip install -q --no-deps --no-index --no-build-isolation --editable . \
    && .venv/bin/pip uninstall -q -y -r requirements/build.txt pip \
    && cd .venv/lib/python3*/site-packages/pyspark && rm -r jars/connect-repl examples python/lib

FROM ${BASE}
# The first step is the same as in the Kafka image, so the two images share its layer.
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
RUN useradd --system --uid 10001 --no-create-home --home-dir /data loyalty \
    && mkdir -p /data/checkpoints /data/parquet /data/archive /data/keys /data/access /data/scrape && chown -R loyalty /data \
    && ln -s /app/infra/docker/spark.sh /usr/local/bin/driver && ln -s /app/infra/docker/spark.sh /usr/local/bin/executor
COPY --from=build /app/.venv /app/.venv
COPY --from=jars /app/var/jars/spark /app/jars
WORKDIR /app
COPY schemas schemas
COPY services services
COPY pipelines pipelines
COPY infra/__init__.py infra/
COPY infra/docker/__init__.py infra/docker/healthy.py infra/docker/pipeline.sh infra/docker/spark.sh infra/docker/submit.sh infra/docker/
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
    CMD ["python", "-m", "infra.docker.healthy", "http://127.0.0.1:9108/readyz"]
CMD ["bash", "/app/infra/docker/pipeline.sh"]
