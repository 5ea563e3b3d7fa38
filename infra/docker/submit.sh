#!/usr/bin/env bash
# Runs spark-submit with these arguments, and sends SIGTERM to the driver only.
set -euo pipefail

spark-submit "$@" &
submitted=$!

# The driver is a child of spark-submit. It must end its batches while Spark still runs, so only the driver gets the signal.
trap 'kill -TERM $(cat /proc/$submitted/task/*/children)' TERM INT
status=0
wait "$submitted" || status=$?
# A trapped signal ends the first wait although the program still runs.
while kill -0 "$submitted" 2>/dev/null; do
    wait "$submitted" && status=0 || status=$?
done
exit "$status"
