#!/usr/bin/env bash
# Runs spark-submit with these arguments, and sends SIGTERM to the driver only.
set -euo pipefail

# The driver is a child of spark-submit. It must end its batches while Spark still runs, so only the driver gets the signal.
# Before there is a driver, spark-submit gets it.
stop() {
    local submitted=${!-} driver
    [ -n "$submitted" ] || exit 143
    stopped=yes
    # Both fail if the program has ended meanwhile.
    driver=$(cat /proc/"$submitted"/task/*/children) || return 0
    kill -TERM ${driver:-$submitted} || return 0
}

# The trap comes first, because the signal can come at any time.
trap stop TERM INT
spark-submit "$@" &
submitted=$!
stopped=yes
while [ -n "$stopped" ]; do
    stopped=
    # A trapped signal ends `wait` with another status. The next `wait` has that of the program, even if it has ended.
    wait "$submitted" && status=0 || status=$?
done
exit "$status"
