"""What runs on a board: one file for Python 3.9 that needs the standard library, numpy and onnxruntime only."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onefold
from onefold.agent.protocol import VERSION
from onefold.device.agent_archive import pack_agent
from onefold.vocabulary.errors import InputError

SOURCES = sorted((Path(onefold.__file__).parent / "agent").glob("*.py"))
NEWER_KEYWORDS = {"slots", "kw_only", "strict", "weakref_slot"}  # of dataclass and zip, since Python 3.10
NEWER_NAMES = {"StrEnum", "Self", "file_digest", "pairwise", "chdir", "bit_count", "TaskGroup", "ExceptionGroup", "UTC"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_sources_are_for_boards(source: Path) -> None:
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        for name in names:
            top = name.split(".")[0]
            is_ours = name == "onefold.agent" or name.startswith("onefold.agent.")
            assert is_ours or top in {"numpy", "onnxruntime"} or top in sys.stdlib_module_names, name
        if isinstance(node, ast.Call):
            assert not NEWER_KEYWORDS & {keyword.arg for keyword in node.keywords}, ast.unparse(node)
        if isinstance(node, ast.Match):
            raise AssertionError("match is not in Python 3.9")
        if isinstance(node, (ast.Attribute, ast.Name)):
            assert (node.attr if isinstance(node, ast.Attribute) else node.id) not in NEWER_NAMES, ast.unparse(node)


def test_agent_has_the_version_of_onefold() -> None:
    assert onefold.__version__ == VERSION


def test_archive_is_one_small_file_that_is_always_the_same(tmp_path: Path) -> None:
    for name in ("one.pyz", "two.pyz"):
        pack_agent(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.pyz", "two.pyz"]
    assert (tmp_path / "one.pyz").read_bytes() == (tmp_path / "two.pyz").read_bytes()
    assert (tmp_path / "one.pyz").stat().st_size < 200_000
    shown = subprocess.run([tmp_path / "one.pyz", "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == VERSION


def test_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        pack_agent(tmp_path / "missing" / "agent.pyz")


def interpreters() -> list[str]:
    """Return an interpreter of Python 3.9, if there is one that runs."""
    found = [shutil.which("python3.9"), *map(str, Path("~/.pyenv/versions").expanduser().glob("3.9*/bin/python"))]
    for command in filter(None, found):
        shown = subprocess.run([command, "-V"], capture_output=True, text=True, check=False, timeout=60)
        if shown.returncode == 0 and "3.9" in shown.stdout:
            return [command]
    return []


@pytest.mark.skipif(not interpreters(), reason="there is no Python 3.9 here")
def test_idle_agent_runs_on_the_oldest_python_without_libraries(tmp_path: Path) -> None:
    pack_agent(tmp_path / "agent.pyz")
    modules = [
        source.stem
        for source in SOURCES
        if source.stem not in ("__main__", "runner", "worker", "random_inputs", "loading")
        and not source.stem.endswith("_model")
    ]
    program = "import importlib, sys; sys.path.insert(0, 'agent.pyz')\n"
    program += f"for name in {modules}: importlib.import_module('onefold.agent.' + name)\n"
    program += "assert not {'numpy', 'onnxruntime'} & set(sys.modules)\n"
    program += "from onefold.agent.board import describe_board; describe_board()\n"
    program += "from pathlib import Path; from onefold.agent.certificate import create_certificate\n"
    program += "create_certificate(Path('certificate.pem'))\n"
    subprocess.run([*interpreters(), "-I", "-c", program], check=True, cwd=tmp_path, timeout=60)
