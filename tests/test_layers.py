"""Who may import whom, read from the source with `ast`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "onefold"
VOCABULARY = {
    "errors",
    "records",
    "space",
    "expression",
    "requirement",
    "objective",
    "workload",
    "ranking",
    "serving",
    "knobs",
    "variants",
    "plans",
    "quantities",
    "candidates",
}
STAGES = {"training", "inference", "compression", "impact", "retraining", "kernels", "recommend", "report"}
ALLOWED = {
    "errors": set(),
    "records": set(),
    "space": {"errors", "records"},
    "expression": {"errors", "records"},
    "requirement": {"errors", "expression"},
    "objective": {"errors", "expression", "records", "requirement"},
    "serving": {"records"},
    "knobs": {"errors", "records"},
    "variants": {"errors", "records", "serving"},
    "plans": {"errors"},
    "quantities": {"errors"},
    "candidates": {"errors", "records"},
    "ranking": {"objective", "records"},
    "workload": {"errors", "objective", "records", "space"},
    "datasets": {"errors", "workload"},
    "workloads": VOCABULARY | {"datasets", ""},
    "search": VOCABULARY,
    "meter": VOCABULARY,
    "engine": VOCABULARY,
    "store": VOCABULARY,
    "device": VOCABULARY | {"meter"},
    "training": VOCABULARY | {"meter"},
    "inference": VOCABULARY | {"device", "search"},
    "compression": VOCABULARY,
    "impact": VOCABULARY,
    "recommend": VOCABULARY,
    "kernels": VOCABULARY | {"device", "meter"},
    "retraining": VOCABULARY | {"meter", "search"},
    "report": VOCABULARY | {"impact", "recommend", "store"},
    "deploy": VOCABULARY | {"device", "inference", "kernels", "recommend"},
    "study": VOCABULARY | STAGES | {"datasets", "deploy", "device", "search", "meter", "engine", "store"},
    "cli": VOCABULARY | STAGES | {"datasets", "deploy", "device", "study", "store", "workloads", ""},
    "testing": None,
}
HOMES = {
    "optuna": {"search"},
    "cmaes": {"search"},
    "sqlalchemy": {"store"},
    "pynvml": {"meter"},
    "jinja2": {"report"},
    "typer": {"cli"},
    "rich": {"cli"},
    "cloudpickle": {"engine"},
    "sklearn": {"datasets", "impact", "training"},
    "onnx": {"compression", "device", "inference", "kernels"},
    "onnxruntime": {"compression", "deploy", "device", "inference"},
    "torch": {"training", "inference", "compression", "kernels", "workloads", "workload", "study", "retraining"}
    | {"testing"},
    "rule_engine": {"retraining"},
    "tvm": {"kernels"},
    "xgboost": {"kernels"},
    "torch_pruning": {"compression"},
    "zstandard": {"compression"},
}


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            packages = {alias.name for alias in node.names if is_package_or_module(alias.name)}
            if node.module == "onefold" and len(packages) == len(node.names):  # `from onefold import report`
                names |= {f"onefold.{package}" for package in packages}
            else:
                names.add(node.module or "")
    return names


def is_package_or_module(name: str) -> bool:
    return (ROOT / name).exists() or (ROOT / f"{name}.py").exists()


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0].removesuffix(".py")
    allowed = ALLOWED[package]
    for name in imports(path):
        top = name.split(".")[0]
        assert package in HOMES.get(top, {package}), f"{path.name} imports {name}, whose home is {HOMES[top]}"
        if top == "onefold" and allowed is not None and package_of(name) != package:
            assert package_of(name) in allowed, f"{path.name} imports {name}"


def test_packages_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        graph.setdefault(package, set()).update(
            package_of(name) for name in imports(path) if name.startswith("onefold.") and package_of(name) != package
        )
    left = dict(graph)
    while left:
        free = [package for package, needs in left.items() if not needs & left.keys()]
        assert free, f"a circle among {sorted(left)}"
        for package in free:
            del left[package]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_modules_say_what_is_inside(path: Path) -> None:
    forbidden = {"utils", "util", "common", "helpers", "misc", "base", "core", "types", "constants", "models"}
    assert path.stem not in forbidden
