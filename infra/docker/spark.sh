#!/usr/bin/env bash
# Starts a part of the Spark cluster of the compose file: `spark.sh master`, or `spark.sh worker` (web pages on port 8080).
#   SPARK_WORKER_CORES, SPARK_WORKER_MEMORY  what a worker has to give
set -euo pipefail

if [[ ${LOYALTY_SPARK_MASTER:-} != spark://* ]]; then
    echo "spark: without LOYALTY_SPARK_MASTER=spark://spark-master:7077 the pipeline would not use this cluster" >&2
    exit 2
fi
export SPARK_DAEMON_MEMORY=${SPARK_DAEMON_MEMORY:-192m} SPARK_WORKER_DIR=/tmp/work
export SPARK_DAEMON_JAVA_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=file:/app/pipelines/log4j2.properties"
deploy=org.apache.spark.deploy
case $1 in
master) exec spark-class "$deploy.master.Master" --host "$(hostname)" --port 7077 --webui-port 8080 ;;
worker) exec spark-class "$deploy.worker.Worker" --webui-port 8080 "$LOYALTY_SPARK_MASTER" ;;
*) echo "spark: master or worker, not $1" >&2 && exit 2 ;;
esac
