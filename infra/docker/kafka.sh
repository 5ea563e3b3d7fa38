#!/usr/bin/env bash
# Starts the broker of this image: the properties that the local stack uses, and the addresses of a container.
#   KAFKA_ADDRESS       how containers reach it (kafka:9092)
#   KAFKA_HOST_ADDRESS  how this machine reaches what port 29092 is published as (127.0.0.1:9092)
#   KAFKA_JVM_OPTIONS   heap and collector
set -euo pipefail

app=${KAFKA_HOME:-/app}
data=${KAFKA_DATA:-/data/kafka}
java=(java ${KAFKA_JVM_OPTIONS:--Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1} -cp "$app/jars/*")
properties=$data/server.properties

cat "$app/kafka/server.properties" - >"$properties" <<END
listeners=PLAINTEXT://:9092,HOST://:29092,CONTROLLER://127.0.0.1:9093
advertised.listeners=PLAINTEXT://${KAFKA_ADDRESS:-kafka:9092},HOST://${KAFKA_HOST_ADDRESS:-127.0.0.1:9092}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=1@127.0.0.1:9093
log.dirs=$data/log
END

if [ ! -e "$data/log/meta.properties" ]; then
    id=$(tr -d - </proc/sys/kernel/random/uuid)
    "${java[@]}" kafka.tools.StorageTool format --cluster-id "${id:0:22}" --config "$properties"
fi

# In this shell's place, so that SIGTERM reaches the broker and it can close its logs.
exec "${java[@]}" "-Dlog4j2.configurationFile=$app/kafka/log4j2.xml" kafka.Kafka "$properties"
