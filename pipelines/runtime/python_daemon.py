"""PySpark's daemon, which starts the Python workers, without lines that report nothing wrong.

A worker of transformWithState prints each of its steps. This daemon leaves out these lines, and tracebacks of workers
whose task has ended.

Spark closes the connection of a worker when it ends a task early, for example when a query stops. The worker notices
that when it writes, and PySpark's daemon prints the error as if it were a failure. Errors of the code in a worker are
different: the worker sends them to Spark, and the query reports them.
"""

import importlib
import socket
import sys

from pyspark import daemon

_serve = daemon.worker

_TALKATIVE = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""The module that prints its steps to stdout. It sends its errors to Spark."""


def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001  # PySpark calls it so
    """Serve Spark's tasks on a connection. Returns the exit status of the process."""
    if sys.argv[1:] == [_TALKATIVE]:
        vars(importlib.import_module(_TALKATIVE))["print"] = lambda *_: None
    try:
        return _serve(sock, authenticated)
    except BrokenPipeError as error:
        if error.__context__:  # another error came first
            raise
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
