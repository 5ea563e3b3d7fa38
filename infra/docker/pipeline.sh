#!/usr/bin/env bash
# Starts the pipeline, either in this container alone or on the Spark cluster in LOYALTY_SPARK_MASTER.
#   SPARK_EXECUTOR_MEMORY, SPARK_EXECUTOR_CORES  memory and cores of each executor on a cluster
set -euo pipefail

case ${LOYALTY_SPARK_MASTER:-} in
spark://*) ;;
*) exec python -m pipelines "$@" ;;
esac

# The prefix local: tells Spark that every container has the file at the same path.
jars=$(printf ',local:%s' /app/jars/*.jar)
exec bash /app/infra/docker/submit.sh \
    --master "$LOYALTY_SPARK_MASTER" \
    --driver-memory "${LOYALTY_SPARK_DRIVER_MEMORY:-1g}" \
    --driver-java-options "-Dlog4j2.configurationFile=file:/app/pipelines/runtime/log4j2.properties ${LOYALTY_SPARK_JAVA_OPTIONS:--XX:+UseSerialGC}" \
    --executor-memory "${SPARK_EXECUTOR_MEMORY:-768m}" \
    --executor-cores "${SPARK_EXECUTOR_CORES:-1}" \
    --conf spark.executor.extraJavaOptions="-XX:+UseSerialGC" \
    --jars "${jars:1}" \
    /app/pipelines/__main__.py "$@"
