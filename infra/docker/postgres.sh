#!/usr/bin/env bash
# Starts the PostgreSQL of this image; the first start on an empty folder makes user and database.
#   POSTGRES_USER, POSTGRES_DB                   loyalty, and the user's name
#   POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE  needed for the first start; the image has none
#   POSTGRES_OPTIONS                             further options of the server (-c name=value)
set -euo pipefail

data=/data/postgres/data
user=${POSTGRES_USER:-loyalty}
database=${POSTGRES_DB:-$user}

if [ ! -e "$data" ]; then
    password=${POSTGRES_PASSWORD:-}
    if [ -z "$password" ] && [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
        password=$(<"$POSTGRES_PASSWORD_FILE")
    fi
    if [ -z "$password" ]; then
        echo "postgres: the first start needs POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE" >&2
        exit 2
    fi
    # Aside and then renamed: a first start that is broken off leaves no half of a database.
    rm -rf "$data.new"
    initdb --pgdata="$data.new" --username="$user" --pwfile=<(printf '%s\n' "$password") \
        --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 --data-checksums
    echo 'host all all all scram-sha-256' >>"$data.new/pg_hba.conf"
    if [ "$database" != postgres ]; then
        printf 'CREATE DATABASE "%s"\n' "${database//\"/\"\"}" | postgres --single -D "$data.new" -j postgres
    fi
    mv "$data.new" "$data"
fi
unset POSTGRES_PASSWORD

# In this shell's place, so that signals reach the server.
exec postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/tmp -c shared_buffers=64MB -c jit=off \
    ${POSTGRES_OPTIONS:-}
