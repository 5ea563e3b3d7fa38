import threading

import pytest

from tests.support.threads import BackgroundThreads


def test_leaving_the_context_raises_the_error_that_ended_a_thread() -> None:
    def fail() -> None:
        raise ValueError("a defect of the load")

    with pytest.raises(ValueError, match="a defect of the load"), BackgroundThreads(fail):
        pass


def test_leaving_the_context_waits_for_the_threads() -> None:
    begun = threading.Event()

    def work() -> None:
        begun.set()
        threads.stopping.wait(60)

    threads = BackgroundThreads(work)
    with threads:
        assert begun.wait(60)
        assert not threads.are_done
    assert threads.are_done
