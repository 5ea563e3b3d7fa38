"""Reads YAML into maps, lists and texts, and keeps the line of each value.

A scalar stays the text in the file. YAML 1.1 would read 12:30 as 750, no as false, 010 as 8, and 0.1 as a binary
fraction. Duplicate keys, anchors and tags are errors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""The position of a value: keys, and indexes of list items from 0."""

LARGEST_FILE = 256 * 1024
"""Bytes. About 20,000 item codes fit, and a slow process reads them in a few seconds."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``line`` counts from 1. ``path`` is empty for a problem of the whole file."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.path}: {self.message}" if self.path else f"line {self.line}: {self.message}"


class InvalidFileError(ValueError):
    """The file is not valid. The message has one line for each problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Tree:
    """The content of a file, the line of each value, and the problems that were found while reading."""

    value: Any
    lines: dict[Path, int]
    problems: list[Problem]

    def problem(self, path: Path, message: str) -> Problem:
        """Returns a problem at that path. A missing value has the line of the map that should contain it."""
        found = path
        while found and found not in self.lines:
            found = found[:-1]
        return Problem(self.lines.get(found, 1), path_text(path), message)


def path_text(path: Path) -> str:
    """Returns the path as people write it: ``campaigns[2].hours``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def read(text: str) -> Tree:
    """Parses a YAML text. Raises InvalidFileError if it is not YAML."""
    if len(text.encode()) > LARGEST_FILE:
        raise InvalidFileError([Problem(1, "", f"the file has more than {LARGEST_FILE // 1024} KiB")])
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = 1 + (error.problem_mark.line if error.problem_mark else 0)
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise InvalidFileError([Problem(line, "", f"cannot be read: {reason}")]) from error
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, int(error.position))
        raise InvalidFileError([Problem(line, "", "cannot be read: a character is not printable")]) from error
    except (ValueError, OverflowError) as error:
        # PyYAML converts an escape such as \U00110000 without a check.
        raise InvalidFileError([Problem(1, "", "cannot be read: an escape names no character")]) from error
    except RecursionError as error:
        raise InvalidFileError([Problem(1, "", "nested too deeply")]) from error
    tree = Tree({} if root is None else None, {}, [])
    return tree if root is None else Tree(_value(root, (), tree), tree.lines, tree.problems)


def _value(node: yaml.Node, path: Path, tree: Tree) -> Any:
    tree.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _map(node, path, tree)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, number), tree) for number, item in enumerate(node.value)]
    return node.value


def _map(node: yaml.MappingNode, path: Path, tree: Tree) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            tree.problems.append(Problem(line, path_text(path), "a key must be a single word"))
            continue
        place = (*path, key.value)
        if key.value in found:
            tree.problems.append(Problem(line, path_text(place), f"given twice, first in line {tree.lines[place]}"))
            continue
        tree.lines[place] = line
        found[key.value] = _value(value, place, tree)
    return found


class _Loader(yaml.BaseLoader):
    """Forbids anchors, aliases and tags, so that a value depends only on its own text."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise yaml.composer.ComposerError(
                None, None, "anchors (&) and aliases (*) are not allowed", event.start_mark
            )
        if event.tag is not None:
            raise yaml.composer.ComposerError(None, None, "tags (!) are not allowed", event.start_mark)
        return super().compose_node(parent, index)
