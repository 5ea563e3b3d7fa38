#!/usr/bin/env bash
# Starts the PostgreSQL of this image. The first start, on an empty folder, creates the user and the database.
#   POSTGRES_USER                                the user (default: loyalty)
#   POSTGRES_DB                                  the database (default: the name of the user)
#   POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE  required for the first start; the image has no default password
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
        echo "postgres: the first start needs a password: set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE" >&2
        exit 2
    fi
    # Create the database in another folder, then rename the folder. So an interrupted start leaves no partial database.
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

# exec replaces this shell, so that signals reach the server.
exec postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/tmp -c shared_buffers=64MB -c jit=off \
    ${POSTGRES_OPTIONS:-}
