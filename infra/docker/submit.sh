#!/usr/bin/env bash
# Runs spark-submit with these arguments, and sends SIGTERM to the driver only.
set -euo pipefail

# The driver is a child of spark-submit. It must end its micro-batches while Spark still runs, so only the driver gets the
# signal. Before the driver exists, spark-submit gets the signal.
stop() {
    local submitted=${!-} driver
    [ -n "$submitted" ] || exit 143
    stopped=yes
    # `cat` also fails if a thread of spark-submit ends at this moment.
    driver=$(cat /proc/"$submitted"/task/*/children 2>/dev/null) || :
    kill -TERM ${driver:-$submitted} || :
}

# Set the trap first, because the signal can arrive at any time.
trap stop TERM INT
spark-submit "$@" &
submitted=$!
stopped=yes
while [ -n "$stopped" ]; do
    stopped=
    # A trapped signal ends `wait` with another status. The next `wait` returns the status of spark-submit, even if it has
    # already ended.
    wait "$submitted" && status=0 || status=$?
done
exit "$status"
