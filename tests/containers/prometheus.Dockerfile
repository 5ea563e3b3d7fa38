# Debian's Prometheus with the paths of the upstream image, for machines that cannot pull that one: the tests run the
# project's configuration on it.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /etc/prometheus/* \
    && mkdir -p /prometheus && chown nobody /prometheus
USER nobody
EXPOSE 9090
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
