"""The public names of `onefold`, and what importing it loads."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest

import onefold
from onefold.vocabulary.errors import InputError

FUNCTIONS = ("compare", "compile", "compress", "impact", "measure", "retrain", "train", "tune")


def test_everything_in_all_is_there_and_in_dir() -> None:
    assert list(onefold.__all__) == sorted(onefold.__all__)
    for name in onefold.__all__:
        assert getattr(onefold, name) is not None
    assert set(onefold.__all__) <= set(dir(onefold))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_a_real_signature(name: str) -> None:
    function: Callable[..., Any] = getattr(onefold, name)
    signature = inspect.signature(function)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert len(signature.parameters) <= 17
    assert signature.return_annotation not in (inspect.Signature.empty, "Any", Any)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_documents_every_argument(name: str) -> None:
    function = getattr(onefold, name)
    docstring = inspect.getdoc(function) or ""
    assert "Args:" in docstring
    assert "Returns:" in docstring
    documented = docstring.partition("Args:")[2]
    missing = [argument for argument in inspect.signature(function).parameters if f"{argument}: " not in documented]
    assert not missing


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_mistyped_keyword_gets_a_suggestion(name: str) -> None:
    function = getattr(onefold, name)
    with pytest.raises(InputError, match=r"unknown argument 'on_evnet' of .*; did you mean 'on_event'\?") as caught:
        function(object(), on_evnet=None)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trials": "2"}, "trials must be int or None, got '2'"),
        ({"trials": 2.5}, "trials must be int or None, got 2.5"),
        ({"objective": "accuracy"}, "objective must be Objective or None, got 'accuracy'"),
        ({"budget": 3}, "budget must be Budget or None, got 3"),
        ({"compress": "inloop"}, "did you mean 'in-loop'"),
        ({"on_event": 5}, "on_event must be Callable or None, got 5"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        onefold.tune("digits", **arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: onefold.compile("model.onnx", budget=5), "budget must be CompileBudget, got 5"),  # type: ignore[arg-type]
        (lambda: onefold.compile_many(["model.onnx"], options=5), "options must be CompileOptions, got 5"),  # type: ignore[arg-type]
        (lambda: onefold.retrain("deploy", "new", options=5), "options must be RetrainingOptions or None, got 5"),  # type: ignore[arg-type]
        (lambda: onefold.retrain("deploy", "new", window=[1]), r"window must be str or float or int, got \[1\]"),  # type: ignore[arg-type]
    ],
)
def test_types_are_checked_beside_arguments_whose_types_only_a_type_checker_knows(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_study_has_few_arguments_and_suggests_them() -> None:
    assert len(inspect.signature(onefold.Study).parameters) <= 14
    with pytest.raises(InputError, match=r"unknown argument 'buget' of Study\(\); did you mean 'budget'\?"):
        typing.cast("Any", onefold.Study)("digits", buget=1)
    with pytest.raises(InputError, match=r"unknown argument 'hom' of Study\.open\(\); did you mean 'home'\?"):
        typing.cast("Any", onefold.Study).open("digits-1", hom="studies")


@pytest.mark.parametrize("name", [name for name in onefold.__all__ if name.endswith("Options") or "Budget" in name])
def test_option_records_suggest_a_mistyped_field(name: str) -> None:
    record = getattr(onefold, name)
    field = next(iter(inspect.signature(record).parameters))
    with pytest.raises(InputError, match=rf"unknown argument '{field}x' of {name}\(\); did you mean '{field}'\?"):
        record(**{f"{field}x": 1})


def test_a_missing_argument_and_a_mistyped_name_are_explained() -> None:
    with pytest.raises(InputError, match=r"tune\(\): missing a required argument: 'workload'"):
        typing.cast("Any", onefold.tune)()
    result = subprocess.run([sys.executable, "-c", "import onefold; onefold.tunes"], capture_output=True, text=True)
    assert "Did you mean: 'tune'?" in result.stderr


def test_importing_needs_no_torch_no_database_and_no_sampler() -> None:
    code = "import sys, onefold; print([m for m in ('torch', 'sqlalchemy', 'optuna', 'sklearn') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_command_that_trains_nothing_does_not_import_torch() -> None:
    code = "import sys, onefold.cli.app; print([m for m in ('torch', 'onnx', 'sklearn', 'scipy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
