"""Where a checkout and an installed package keep their data.

A checkout keeps everything in its folder ``var``. An installed package uses the folders of the XDG Base Directory
Specification 0.8 (https://specifications.freedesktop.org/basedir-spec/). This module uses only the standard library,
because ``make setup`` runs it.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the packages: a checkout, or site-packages."""

IS_CHECKOUT = (ROOT / "pyproject.toml").is_file()


def enter(chosen: str | Path | None = None) -> Path:
    """Make the folder of the data the working directory, because relative folders of the settings start there.

    The default is the root of the checkout, or for an installed package the user's data folder.
    """
    home = Path(chosen or (ROOT if IS_CHECKOUT else _user_folder("XDG_DATA_HOME", ".local/share"))).resolve()
    # As in XDG: no other user of the machine may read the data, because they have cards.
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chdir(home)
    return home


def downloads() -> Path:
    """The folder of files that can be downloaded again."""
    return ROOT / "var" if IS_CHECKOUT else _user_folder("XDG_CACHE_HOME", ".cache")


def _user_folder(variable: str, default: str) -> Path:
    # The specification demands that relative paths are ignored.
    given = Path(os.environ.get(variable, ""))
    return (given if given.is_absolute() else Path.home() / default) / "retail-loyalty"
