"""The loyalty programme: the file that people write, and the topic on which every process finds all of its versions."""

from services.programmes.file import ProgrammeError, parse
from services.programmes.topic import Version, load, publish, version_0, versions

__all__ = ["ProgrammeError", "Version", "load", "parse", "publish", "version_0", "versions"]
