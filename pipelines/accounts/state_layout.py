"""The format of the loyalty query's state. A manifest says which format a checkpoint has."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.checkpoints.manifest import CheckpointMismatchError

STATE_VERSION = "2"
"""Version of the state's format. A checkpoint with another version cannot continue."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the state of a checkpoint is arranged.

    Attributes:
        buckets: the number of buckets in each shuffle partition.
        are_shared: whether the maps of a bucket share one state variable.
    """

    buckets: int
    are_shared: bool


LAYOUT = "layout"
"""The name of the layout in a manifest. A checkpoint without this name has the first layout."""

LAYOUTS = {"1": Layout(16, are_shared=False), "2": Layout(1, are_shared=True)}
"""By name, the layout of release 0.1 and the current layout."""


def layout_of(checkpoint: str, formats: Mapping[str, str]) -> Layout:
    """The layout that a manifest names. Raises CheckpointMismatchError."""
    name = formats.get(LAYOUT, "1")
    if name not in LAYOUTS:
        raise CheckpointMismatchError(
            f"the state in {checkpoint} has the layout {name}, which this release does not know: use the newer release "
            "that has made the checkpoint"
        )
    return LAYOUTS[name]


ACCOUNTS = "accounts"
"""The state variable: in each bucket a map from a key to the bytes of a state and its timer (0: none).

The key of an account is its card. The key of an erasure marker is the card's pseudonym, because the state must not keep
the card of an erased customer. Blanks before the pseudonym make this key longer than any card.
"""
