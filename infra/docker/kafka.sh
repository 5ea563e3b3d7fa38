#!/usr/bin/env bash
# Starts the broker of this image, with the properties of the local stack and the addresses of a container.
#   KAFKA_ADDRESS       the broker's address for other containers (kafka:9092)
#   KAFKA_HOST_ADDRESS  the broker's address for programs on the host, which publishes port 29092 (127.0.0.1:9092)
#   KAFKA_JVM_OPTIONS   heap size and garbage collector
#   KAFKA_SECRETS       folder with the files ca, broker and admin; with it, clients must log in (docs/how-to/secure-kafka.md)
set -euo pipefail

app=${KAFKA_HOME:-/app}
data=${KAFKA_DATA:-/data/kafka}
secrets=${KAFKA_SECRETS:-}
address=${KAFKA_ADDRESS:-kafka:9092}
host_address=${KAFKA_HOST_ADDRESS:-127.0.0.1:9092}
java=(java ${KAFKA_JVM_OPTIONS:--Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1} -cp "$app/jars/*")
properties=$data/server.properties

# The broker connects to itself to end transactions. It uses the listener BROKER for that, because only Compose and
# Kubernetes can resolve KAFKA_ADDRESS.
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
    # The arguments come from a pipe, because every user can see command lines in the process list. The output is
    # discarded, because it contains the stored form of the password.
    "${java[@]}" @<(printf '%s\n' "${format[@]}") >/dev/null
fi

# exec replaces this shell, so that SIGTERM reaches the broker and it can close its logs.
exec "${java[@]}" "-Dlog4j2.configurationFile=$app/kafka/log4j2.xml" kafka.Kafka "$properties"
