"""YAML files that people write: read without guessing, every mistake named with its line, all of them at once."""

from services.yaml_files.model import FileModel, Notes, validated
from services.yaml_files.tree import InvalidFileError, Problem

__all__ = ["FileModel", "InvalidFileError", "Notes", "Problem", "validated"]
