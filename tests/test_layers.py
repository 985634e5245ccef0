"""The import rules of ARCHITECTURE.md, read from the source with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "onefold"
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]

# What the mechanics of a package may import, besides the vocabulary, arrays and themselves.
ALLOWED: dict[str, set[str]] = {
    "vocabulary": set(),
    "arrays": {"meter"},
    "datasets": {"meter"},
    "workloads": {"", "datasets"},
    "search": set(),
    "agent": set(),
    "meter": {"agent", "processes"},
    "model_folder": set(),
    "store": {"model_folder"},
    "processes": set(),
    "engine": {"processes"},
    "runtimes": {"agent", "processes"},
    "device": {"agent", "meter", "processes", "runtimes"},
    "training": {"meter", "model_folder", "processes"},
    "kernels": {"agent", "device", "meter", "model_folder", "processes", "runtimes"},
    "serving": {"agent", "device", "kernels", "model_folder", "runtimes", "search"},
    "compression": {"agent", "device", "processes", "runtimes", "serving", "training"},
    "retraining": {"meter", "model_folder", "search", "training"},
    "impact_analysis": set(),
    "model_server": {"agent", "serving"},
    "report": {"impact_analysis", "serving", "store"},
}
BELOW_STUDY = set(ALLOWED)
BELOW_ARRAYS = {"vocabulary", "meter"}
# Baselines stand beside the features and may use their mechanics; only the CLI (and benchmarks) use baselines.
ALLOWED |= {
    "baselines": {"datasets", "kernels", "retraining", "search"},
    "cli": BELOW_STUDY | {"study", "", "baselines"},
}
ALLOWED |= {"study": BELOW_STUDY, "testing": BELOW_STUDY | {"study", "", "pytest"}}

# Modules that decide where work runs and what is remembered. They may also use engine, store and other features.
ORCHESTRATION = {
    "compression.after_study",
    "compression.api",
    "compression.trial_variants",
    "kernels.api",
    "kernels.compilation",
    "kernels.compiled_artifacts",
    "kernels.source_models",
    "kernels.runtime_comparison",
    "retraining.api",
    "retraining.model_update",
    "serving.api",
    "serving.trial_measurement",
    "training.api",
    "training.calls",
}
ABOVE_STUDY = {  # an impact analysis and a comparison of strategies run studies
    "baselines.tuning_comparison",
    "impact_analysis.api",
    "impact_analysis.architecture_costs",
    "impact_analysis.architecture_records",
    "impact_analysis.model_analysis",
}

HOMES = {
    "ai_edge_litert": {"agent"},
    "alembic": {"store"},
    "cloudpickle": {"engine"},
    "cmaes": {"search"},
    "executorch": {"agent", "runtimes"},
    "jinja2": {"report"},
    "litert_torch": {"runtimes"},
    "ncnn": {"agent", "runtimes"},
    "onnx": {"compression", "device", "kernels", "runtimes", "serving", "testing"},
    "onnxruntime": {"agent", "compression", "device", "runtimes", "serving"},
    "openvino": {"agent", "runtimes"},
    "optuna": {"search"},
    "pnnx": {"runtimes"},
    "prometheus_client": {"model_server"},
    "pynvml": {"meter"},
    "rich": {"cli"},
    "rule_engine": {"retraining"},
    "safetensors": {"training"},
    "sklearn": {"datasets", "impact_analysis", "training"},
    "sqlalchemy": {"store"},
    "starlette": {"model_server"},
    "torch": {"agent", "compression", "kernels", "retraining", "runtimes", "serving", "study", "testing", "training"}
    | {"vocabulary", "workloads"},
    "torch_pruning": {"compression"},
    "tvm": {"kernels"},
    "typer": {"cli"},
    "uvicorn": {"model_server"},
    "xgboost": {"kernels"},
    "zstandard": {"compression"},
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "misc", "base", "core", "types", "constants", "models"}


def module_of(path: Path) -> str:
    """Return the dotted name below `onefold`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def package_of(module: str) -> str:
    """Return the package of a module: `search` for `onefold.search.grouped`, empty for `onefold`."""
    return [*module.split("."), ""][1]


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, also inside functions and as strings passed to importlib."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {_submodule(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return names


def _submodule(module: str, name: str) -> str:
    """Resolve `from MODULE import NAME` to the module that it imports: MODULE.NAME if that is one, or else MODULE."""
    parts = module.split(".")
    is_ours = parts[0] == "onefold"
    candidate = ROOT.joinpath(*parts[1:], name)
    return f"{module}.{name}" if is_ours and (candidate.is_dir() or candidate.with_suffix(".py").exists()) else module


def allowed_for(module: str) -> set[str]:
    """Return the packages that a module may import."""
    if module in ORCHESTRATION:
        return BELOW_STUDY
    if module in ABOVE_STUDY:
        return BELOW_STUDY | {"study"}
    package = module.split(".")[0]
    return ALLOWED[package] | ({"vocabulary"} if package in BELOW_ARRAYS else {"vocabulary", "arrays"})


def violations() -> Iterable[str]:
    """Return one line for each import that breaks a rule."""
    for path in FILES:
        module, package = module_of(path), path.relative_to(ROOT).parts[0]
        for name in imports(path):
            top = name.split(".")[0]
            if package not in HOMES.get(top, {package}):
                yield f"{module} imports {name}, whose home is {sorted(HOMES[top])}"
            if top != "onefold":
                continue
            if package_of(name) not in allowed_for(module) | {package}:
                yield f"{module} imports {name}"
            is_mechanics = package not in ("study", "cli", "testing") and module not in ORCHESTRATION | ABOVE_STUDY
            if is_mechanics and name.endswith(".api"):
                yield f"{module} imports {name}: mechanics do not call an api"


def test_modules_import_only_what_their_layer_may() -> None:
    assert not list(violations())


def test_there_are_no_import_cycles() -> None:
    left = {
        f"onefold.{module_of(path)}": {name for name in imports(path) if name.startswith("onefold.")} for path in FILES
    }
    while left:
        free = [module for module, needs in left.items() if not (needs - {module}) & left.keys()]
        assert free, f"a circle among {sorted(left)}"
        for module in free:
            del left[module]


def test_no_module_has_a_generic_name() -> None:
    assert not [module_of(path) for path in FILES if path.stem in FORBIDDEN_NAMES]
