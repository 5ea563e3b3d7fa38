# PostgreSQL, Debian's own package. Build from the project's folder:
#   docker build -f infra/docker/postgres.Dockerfile -t retail-loyalty-postgres .
# BASE is any Debian 12; by digest (debian@sha256:…) the build repeats exactly.
ARG BASE=debian:bookworm-slim

FROM ${BASE}
# A user id that no package can move: the files of a volume outlive the image.
RUN useradd --system --uid 10001 --no-create-home --home-dir /data --shell /bin/bash postgres \
    && mkdir -p /data/postgres && chown -R postgres /data && chmod 700 /data/postgres
# Without the cluster that the package makes, as its data would be in the image, and without the compiler for long queries
# (jit), which is a third of the package and never pays for statements of one customer.
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
# Over TCP: while the first start makes the database, nobody listens there.
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=6 \
    CMD ["pg_isready", "--quiet", "--host=127.0.0.1"]
# Ends sessions and closes its files; SIGTERM would wait for the sessions.
STOPSIGNAL SIGINT
ENTRYPOINT ["bash", "/app/postgres.sh"]
