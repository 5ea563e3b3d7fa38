#!/usr/bin/env bash
# Starts the broker of this image: the properties that the local stack uses, and the addresses of a container.
#   KAFKA_ADDRESS       how containers reach it (kafka:9092)
#   KAFKA_HOST_ADDRESS  how this machine reaches what port 29092 is published as (127.0.0.1:9092)
#   KAFKA_JVM_OPTIONS   heap and collector
#   KAFKA_SECRETS       folder with the files ca, broker and admin: clients must prove who they are (docs/how-to/secure-kafka.md)
set -euo pipefail

app=${KAFKA_HOME:-/app}
data=${KAFKA_DATA:-/data/kafka}
secrets=${KAFKA_SECRETS:-}
address=${KAFKA_ADDRESS:-kafka:9092}
host_address=${KAFKA_HOST_ADDRESS:-127.0.0.1:9092}
java=(java ${KAFKA_JVM_OPTIONS:--Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1} -cp "$app/jars/*")
properties=$data/server.properties

# It speaks to itself too, to end transactions: over BROKER, as only Compose and Kubernetes can resolve its address.
{
    cat "$app/kafka/server.properties"
    if [ -z "$secrets" ]; then
        cat <<END
listeners=PLAINTEXT://:9092,HOST://:29092,BROKER://127.0.0.1:9094,CONTROLLER://127.0.0.1:9093
advertised.listeners=PLAINTEXT://$address,HOST://$host_address,BROKER://127.0.0.1:9094
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
END
    else
        cat "$app/kafka/secured.properties" - <<END
listeners=SASL_SSL://:9092,HOST://:29092,BROKER://127.0.0.1:9094,CONTROLLER://127.0.0.1:9093
advertised.listeners=SASL_SSL://$address,HOST://$host_address,BROKER://127.0.0.1:9094
ssl.keystore.location=$secrets/broker
ssl.truststore.location=$secrets/ca
END
    fi
    echo "controller.quorum.voters=1@127.0.0.1:9093"
    echo "log.dirs=$data/log"
} >"$properties"

if [ ! -e "$data/log/meta.properties" ]; then
    id=$(tr -d - </proc/sys/kernel/random/uuid)
    format=(kafka.tools.StorageTool format --cluster-id "${id:0:22}" --config "$properties")
    if [ -n "$secrets" ]; then
        format+=(--add-scram "SCRAM-SHA-512=[name=admin,password=$(<"$secrets/admin")]")
    fi
    # From a pipe, as lists of processes show everybody what stands on a command line; and what it says is left out of
    # the log, as it shows what the broker keeps of the password.
    "${java[@]}" @<(printf '%s\n' "${format[@]}") >/dev/null
fi

# In this shell's place, so that SIGTERM reaches the broker and it can close its logs.
exec "${java[@]}" "-Dlog4j2.configurationFile=$app/kafka/log4j2.xml" kafka.Kafka "$properties"
