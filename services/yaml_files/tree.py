"""YAML as maps, lists and texts, with the line of each.

Every scalar stays the text that is written: YAML 1.1 would read 12:30 as 750, no as false, 010 as 8, and 0.1 as a
binary fraction. What cannot be meant in such a file (a key given twice, anchors, tags) is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Where a value is: keys, and numbers of list items from 0."""

LARGEST_FILE = 256 * 1024
"""Bytes: some 20,000 item codes, read in a few seconds by the slowest process."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake; ``line`` counts from 1, ``path`` is empty where the file as a whole is meant."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.path}: {self.message}" if self.path else f"line {self.line}: {self.message}"


class InvalidFileError(ValueError):
    """A file that is not what it should be; the message has a line for each problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Tree:
    """What a file says, the line of every value in it, and what of it cannot be meant."""

    value: Any
    lines: dict[Path, int]
    problems: list[Problem]

    def problem(self, path: Path, message: str) -> Problem:
        """A problem at that path, or with what should be there: then the line is that of what it is missing in."""
        found = path
        while found and found not in self.lines:
            found = found[:-1]
        return Problem(self.lines.get(found, 1), shown(path), message)


def shown(path: Path) -> str:
    """As people write it: ``campaigns[2].hours``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def read(text: str) -> Tree:
    """The tree of a YAML text; raises InvalidFileError where it is no YAML at all."""
    if len(text.encode()) > LARGEST_FILE:
        raise InvalidFileError([Problem(1, "", f"the file has more than {LARGEST_FILE // 1024} KiB")])
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = 1 + (error.problem_mark.line if error.problem_mark else 0)
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise InvalidFileError([Problem(line, "", f"cannot be read: {said}")]) from error
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, int(error.position))
        raise InvalidFileError([Problem(line, "", "cannot be read: a character is not printable")]) from error
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
            tree.problems.append(Problem(line, shown(path), "a key must be a single word"))
            continue
        place = (*path, key.value)
        if key.value in found:
            tree.problems.append(Problem(line, shown(place), f"given twice, first in line {tree.lines[place]}"))
            continue
        tree.lines[place] = line
        found[key.value] = _value(value, place, tree)
    return found


class _Loader(yaml.BaseLoader):
    """Refuses what makes a value depend on another place of the file, or on a type."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise yaml.composer.ComposerError(
                None, None, "anchors (&) and aliases (*) are not allowed", event.start_mark
            )
        if event.tag is not None:
            raise yaml.composer.ComposerError(None, None, "tags (!) are not allowed", event.start_mark)
        return super().compose_node(parent, index)
