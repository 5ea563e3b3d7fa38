"""PySpark's daemon, which starts the Python workers, but without tracebacks of workers whose task has ended.

Spark closes the connection of a worker when it ends a task early, for example when a query stops. The worker then gets
an error when it writes, and PySpark's daemon would print this error like a failure. Other errors are not lost: the
worker sends them to Spark, and the query reports them.
"""

import socket

from pyspark import daemon

_serve = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001  # PySpark calls it so
    """Serve Spark's tasks on a connection. Returns the exit status of the process."""
    try:
        return _serve(sock, authenticated)
    except BrokenPipeError as error:
        if error.__context__:  # another error came first
            raise
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
