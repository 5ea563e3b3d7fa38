"""Validates a YAML file that people write. An error lists all problems with their lines."""

import difflib
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from services.yaml_files.tree import InvalidFileError, Path, read

Notes = list[tuple[Path, str]]
"""The context of a validation. Validators append problems that are not in the value that they check."""

_SHAPES = {
    "list_type": "must be a list",
    "dict_type": "must be a map (key: value)",
    "model_type": "must be a map (key: value)",
    "missing": "is missing",
}

Model = TypeVar("Model", bound="FileModel")


def _key(name: str) -> str:
    return name.replace("_", "-")


class FileModel(BaseModel):
    """A map in a file. Its keys have hyphens instead of underscores. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=_key)


def validated(text: str, model: type[Model]) -> Model:
    """Returns the file as the model. Raises InvalidFileError with all problems."""
    tree = read(text)
    notes: Notes = []
    result = None
    try:
        result = model.model_validate(tree.value, context=notes)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        notes += [(_path(item), _message(item, model)) for item in errors]
    problems = tree.problems + [tree.problem(path, message) for path, message in notes]
    if problems or result is None:
        raise InvalidFileError(problems)
    return result


def _path(item: ErrorDetails) -> Path:
    return tuple(step for step in item["loc"] if step != "[key]")


def _message(item: ErrorDetails, model: type[BaseModel]) -> str:
    if item["type"] == "extra_forbidden":
        *above, key = _path(item)
        return _unknown(str(key), [_key(name) for name in _model_at(model, above).model_fields])
    if item["type"] == "value_error":
        return str(item.get("ctx", {}).get("error", item["msg"]))
    return _SHAPES.get(item["type"], item["msg"])


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    suggestion = f"Did you mean {near[0]}? " if near else ""
    return f"unknown key. {suggestion}Allowed keys: {', '.join(known)}"


def _model_at(model: type[BaseModel], path: list[Any]) -> type[BaseModel]:
    for step in path:
        if isinstance(step, str):
            annotation = next(field.annotation for name, field in model.model_fields.items() if _key(name) == step)
            types = (annotation, *get_args(annotation))
            model = next(each for each in types if isinstance(each, type) and issubclass(each, BaseModel))
    return model
