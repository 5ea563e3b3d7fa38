"""The choice of the Java installation: infra.local.java."""

from pathlib import Path

import pytest

from infra.local.java import JavaNotFoundError, feature_release, find_java_home, is_suitable

MODULES = "java.base jdk.incubator.vector"


def java_home(folder: Path, version: str, modules: str | None = MODULES) -> Path:
    """A folder like an installed Java, with a release file and bin/java."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    lines = [f'JAVA_VERSION="{version}"', *([f'MODULES="{modules}"'] if modules is not None else [])]
    (folder / "release").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("expected", "version"),
    [
        (17, "17"),
        (17, "17.0.15"),
        (17, "17.0.15+6-Debian"),
        (21, "21-ea"),
        (8, "1.8.0_402"),
        (11, "11.0.2"),
        (0, ""),
        (0, "x17"),
    ],
)
def test_the_feature_release_is_found(expected: int, version: str) -> None:
    """It is the first number, or the second of the old numbering 1.x."""
    assert expected == feature_release(version)


@pytest.mark.parametrize(
    ("expected", "version"),
    [(True, "17.0.15"), (True, "21"), (False, "11.0.2"), (False, "25.0.1"), (False, "1.8.0_402")],
)
def test_only_java_17_and_21_are_suitable(tmp_path: Path, expected: bool, version: str) -> None:  # noqa: FBT001
    """Older releases and 25 are not."""
    assert expected is is_suitable(java_home(tmp_path / "java", version))


def test_a_runtime_without_the_vector_module_is_not_suitable(tmp_path: Path) -> None:
    """A reduced Java 17 without jdk.incubator.vector cannot start Spark."""
    assert is_suitable(java_home(tmp_path / "java", "17.0.15", modules="java.base java.sql")) is False


def test_a_release_file_need_not_list_modules(tmp_path: Path) -> None:
    """A Java whose release file lists no modules is accepted, because some vendors list none."""
    assert is_suitable(java_home(tmp_path / "java", "17.0.15", modules=None)) is True


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    """JAVA_HOME has priority over a suitable Java on PATH."""
    chosen = java_home(tmp_path / "chosen", "21.0.1")
    other = java_home(tmp_path / "other", "17.0.1")
    assert chosen == find_java_home({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")})


def test_an_unsuitable_java_home_is_ignored(tmp_path: Path) -> None:
    """With Java 25 in JAVA_HOME, the Java 17 on PATH is used, also through a link."""
    newest = java_home(tmp_path / "newest", "25.0.1")
    suitable = java_home(tmp_path / "suitable", "17.0.1")
    link = tmp_path / "bin" / "java"
    link.parent.mkdir()
    link.symlink_to(suitable / "bin" / "java")
    assert suitable == find_java_home({"JAVA_HOME": str(newest), "PATH": str(link.parent)})


def test_the_error_without_java_names_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java the error is one line that names a package and JAVA_HOME."""
    monkeypatch.setattr("infra.local.java._HOMES", (f"{tmp_path}/*",))
    with pytest.raises(JavaNotFoundError, match=r"^no Java 17 or 21 found: .*openjdk-17-jre-headless.*JAVA_HOME$"):
        find_java_home({"PATH": str(tmp_path)})
