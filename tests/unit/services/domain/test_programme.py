"""The choice of the version of the programme."""

import pytest

from services.domain.programme import Programme, Programmes

FIRST, SECOND, CORRECTED = Programme(), Programme(1, effective_time=100), Programme(2, effective_time=100)


@pytest.mark.parametrize(("time", "version"), [(-1, 0), (0, 0), (99, 0), (100, 2), (10**15, 2)])
def test_latest_version_in_force_decides(time, version):
    """A version applies from its start, and the first one also before it. The later of two equal starts applies."""
    assert version == Programmes.of([CORRECTED, FIRST, SECOND]).at(time).version


def test_every_version_can_be_looked_up():
    """A return needs the version of its purchase, also after a newer version has taken effect."""
    programmes = Programmes.of([CORRECTED, SECOND, FIRST])

    assert [FIRST, SECOND, CORRECTED] == [programmes.version(number) for number in range(3)]
    with pytest.raises(LookupError, match="no version 3"):
        programmes.version(3)


def test_the_search_for_a_version_reads_the_versions_once():
    """An account asks for the version of each purchase and return that it remembers, at each event."""
    read = []

    class Versions(tuple):
        __slots__ = ()

        def __iter__(self):
            read.append(len(self))
            return super().__iter__()

    programmes = Programmes(Versions([FIRST, SECOND, CORRECTED]))

    assert [SECOND] * 3 == [programmes.version(1) for _ in range(3)]
    assert [3] == read
