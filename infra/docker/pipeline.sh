#!/usr/bin/env bash
# Starts the pipeline of this image: in this container alone, or on the Spark cluster that LOYALTY_SPARK_MASTER names.
#   SPARK_EXECUTOR_MEMORY, SPARK_EXECUTOR_CORES  of each executor on a cluster
set -euo pipefail

case ${LOYALTY_SPARK_MASTER:-} in
spark://*) ;;
*) exec python -m pipelines "$@" ;;
esac

# local: is Spark's word for files that are at the same place in every container.
jars=$(printf ',local:%s' /app/jars/*.jar)
spark-submit \
    --master "$LOYALTY_SPARK_MASTER" \
    --driver-memory "${LOYALTY_SPARK_DRIVER_MEMORY:-1g}" \
    --driver-java-options "-Dlog4j2.configurationFile=file:/app/pipelines/runtime/log4j2.properties ${LOYALTY_SPARK_JAVA_OPTIONS:--XX:+UseSerialGC}" \
    --executor-memory "${SPARK_EXECUTOR_MEMORY:-768m}" \
    --executor-cores "${SPARK_EXECUTOR_CORES:-1}" \
    --conf spark.executor.extraJavaOptions="-XX:+UseSerialGC" \
    --jars "${jars:1}" \
    /app/pipelines/__main__.py "$@" &
submitted=$!

# The driver is spark-submit's child. It must end its batches while Spark still stands, so the signal goes to it alone.
trap 'kill -TERM $(cat /proc/$submitted/task/*/children)' TERM INT
status=0
wait "$submitted" || status=$?
# A trapped signal ends the first wait, not the program.
while kill -0 "$submitted" 2>/dev/null; do
    wait "$submitted" && status=0 || status=$?
done
exit "$status"
