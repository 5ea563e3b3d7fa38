# PostgreSQL from Debian's package. Build it in the project's folder:
#   docker build -f infra/docker/postgres.Dockerfile -t retail-loyalty-postgres .
# BASE can be any Debian 12 image. For a reproducible build, name it by its digest (debian@sha256:…).
ARG BASE=debian:bookworm-slim

FROM ${BASE}
# A fixed user id: the files on a volume belong to it, and they outlive the image.
RUN useradd --system --uid 10001 --no-create-home --home-dir /data --shell /bin/bash postgres \
    && mkdir -p /data/postgres && chown -R postgres /data && chmod 700 /data/postgres
# Do not let the package create a cluster, because its data would be in the image. Leave out the compiler for long queries
# (JIT): it is a third of the package, and the short statements of the ledger gain nothing from it.
RUN apt-get update -qq \
    && mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        -o DPkg::Options::=--path-exclude='*/libLLVM-*' -o DPkg::Options::=--path-exclude='*/libz3.so*' postgresql-15 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin
COPY infra/docker/postgres.sh /app/postgres.sh
USER postgres
WORKDIR /data
EXPOSE 5432
# Check over TCP: during the first start, while the database is created, the server does not listen there.
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=6 \
    CMD ["pg_isready", "--quiet", "--host=127.0.0.1"]
# SIGINT ends the sessions and closes the files. SIGTERM would wait until clients end their sessions.
STOPSIGNAL SIGINT
ENTRYPOINT ["bash", "/app/postgres.sh"]
