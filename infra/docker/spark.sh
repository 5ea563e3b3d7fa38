#!/usr/bin/env bash
# Starts one process of a Spark cluster, in a container of the pipeline's image.
#   spark.sh master | worker   for the compose file, with web pages on port 8080. SPARK_WORKER_CORES and
#                              SPARK_WORKER_MEMORY limit a worker.
#   driver | executor          for spark-submit --master k8s://…. Kubernetes calls these names, which are links to this file.
set -euo pipefail

role=$(basename "$0")
if [ "$role" = spark.sh ]; then
    role=${1:-nothing}
    shift || true
fi

cluster() {
    if [[ ${LOYALTY_SPARK_MASTER:-} != spark://* ]]; then
        echo "spark: the pipeline would not use this cluster: set LOYALTY_SPARK_MASTER to spark://spark-master:7077" >&2
        exit 2
    fi
    export SPARK_DAEMON_MEMORY=${SPARK_DAEMON_MEMORY:-192m} SPARK_WORKER_DIR=/tmp/work
    export SPARK_DAEMON_JAVA_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=file:/app/pipelines/runtime/log4j2.properties"
    exec spark-class "org.apache.spark.deploy.$1" "${@:2}"
}

# Does what the entry point of Spark's own image does with the arguments and variables that Spark gives to its pods.
executor() {
    local options home
    mapfile -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n | sed 's/[^=]*=//')
    home=$(find_spark_home.py)
    exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$home/jars/*:/app/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
}

case $role in
master) cluster master.Master --host "$(hostname)" --port 7077 --webui-port 8080 ;;
worker) cluster worker.Worker --webui-port 8080 "$LOYALTY_SPARK_MASTER" ;;
driver)
    exec bash /app/infra/docker/submit.sh --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
executor) executor ;;
*) echo "spark: there is no role $role: use master, worker, driver or executor" >&2 && exit 2 ;;
esac
