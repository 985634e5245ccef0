"""Load a workload from a reference.

    file.py            the only workload that the file defines
    file.py:Class      one of several
    package.module:Class
    digits             a bundled workload: an entry point of the group "onefold.workloads"

Other packages add bundled workloads of their own through this group.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from onefold.vocabulary.errors import OnefoldError, WorkloadError, suggestion, unknown
from onefold.vocabulary.workload import Workload

BUNDLED_GROUP = "onefold.workloads"
_loading: ContextVar[bool] = ContextVar("loading", default=False)


def bundled_workloads() -> dict[str, str]:
    """Return the bundled workloads: their names and the references they stand for."""
    return {point.name: point.value for point in entry_points(group=BUNDLED_GROUP)}


def is_bundled(reference: str) -> bool:
    """Return whether a reference names a bundled workload: installed code and no other."""
    return reference in bundled_workloads()


def load(reference: str) -> Workload:
    """Return an instance of the workload that a reference names.

    A package is looked for in the current folder first, but not that of a bundled workload. Raises WorkloadError if
    there is no such workload.
    """
    source, _, wanted = reference.partition(":")
    path = Path(source).expanduser()
    if path.suffix == ".py":
        module = _module_of_file(path)
    elif not wanted and source in (ready := bundled_workloads()):
        name, _, wanted = ready[source].partition(":")
        module = _imported(name)  # installed: never what lies in the current folder
    elif path.is_file():
        module = _module_of_file(path)
    elif re.fullmatch(r"[A-Za-z_][\w.]*", source) and ("." in source or wanted):
        module = _module_of_name(source)
    else:
        raise WorkloadError(
            f"{source!r} is neither a Python file nor a bundled workload{suggestion(source, bundled_workloads())}"
        )
    return _instance(_choose(module, wanted, reference), reference)


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise WorkloadError(f"there is no file {str(path)!r}; give the Python file that defines the workload")
    path = path.resolve()
    name = f"onefold_workload_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{str(path)!r} is not a Python file")
    if str(path.parent) not in sys.path:  # a workload may import modules beside it
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _mapped_errors(str(path)):
        spec.loader.exec_module(module)
    return module


def _module_of_name(name: str) -> ModuleType:
    top = Path(name.partition(".")[0])
    if top.is_dir() or top.with_suffix(".py").is_file():  # a package in the current folder need not be installed
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
    return _imported(name)


def _imported(name: str) -> ModuleType:
    with _mapped_errors(name):
        return importlib.import_module(name)


@contextmanager
def _mapped_errors(reference: str) -> Iterator[None]:
    token = _loading.set(True)
    try:
        yield
    except OnefoldError:
        raise
    except SyntaxError as error:
        raise WorkloadError(f"{reference} is not valid Python: {error.msg} in line {error.lineno}") from error
    except Exception as error:
        raise WorkloadError(f"{reference} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        _loading.reset(token)


def is_loading() -> bool:
    """Return whether a workload file is being imported right now."""
    return _loading.get()


def _choose(module: ModuleType, wanted: str, reference: str) -> type[Workload]:
    classes = {
        name: member
        for name, member in vars(module).items()
        if inspect.isclass(member) and issubclass(member, Workload) and member.__module__ == module.__name__
    }
    if wanted:
        if wanted not in classes:
            raise WorkloadError(unknown("workload", wanted, classes, of=reference.partition(":")[0]))
        return classes[wanted]
    if not classes:
        raise WorkloadError(
            f"{reference} has no workload; define a subclass of onefold.Workload "
            "with a space, build(self, config) and data(self)"
        )
    if len(classes) > 1:
        raise WorkloadError(f"{reference} has several workloads; name one: {reference}:{' or :'.join(classes)}")
    return next(iter(classes.values()))


def _instance(kind: type[Workload], reference: str) -> Workload:
    try:
        return kind()
    except TypeError as error:
        raise WorkloadError(f"{reference} cannot be instantiated without arguments: {error}") from error
