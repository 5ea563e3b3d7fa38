#!/usr/bin/env bash
# Runs spark-submit with these arguments, and sends SIGTERM to the driver only.
set -euo pipefail

# The driver is a child of spark-submit. It must end its batches while Spark still runs, so only the driver gets the signal.
# Before there is a driver, spark-submit gets it.
stop() {
    local submitted=${!-} driver
    [ -n "$submitted" ] || exit 143
    driver=$(cat /proc/"$submitted"/task/*/children)
    kill -TERM ${driver:-$submitted}
}

# The trap comes first, because the signal can come at any time.
trap stop TERM INT
spark-submit "$@" &
submitted=$!
status=0
wait "$submitted" || status=$?
# A trapped signal ends the first wait although the program still runs.
while kill -0 "$submitted" 2>/dev/null; do
    wait "$submitted" && status=0 || status=$?
done
exit "$status"
