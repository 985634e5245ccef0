"""`onefold.compile` and `onefold.compile_many`: tune and compile the kernels of models for a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from onefold.device import Device
from onefold.device.catalog import HOST
from onefold.device.host import find_device
from onefold.kernels.compilation import Compilation
from onefold.kernels.source_models import ModelLike, Samples, load_models
from onefold.kernels.strategies import check_strategy
from onefold.kernels.survey_tuner import CompileEvent
from onefold.processes import scratch_folder
from onefold.store.home import Home
from onefold.vocabulary.argument_checks import suggest_keywords
from onefold.vocabulary.errors import BudgetError, InputError
from onefold.vocabulary.guarded_callback import GuardedCallback
from onefold.vocabulary.kernels import CompileBudget, CompileOptions, CompileResult
from onefold.vocabulary.quantities import count, parse_seconds

__all__ = ["CompileBudget", "CompileEvent", "CompileOptions", "CompileResult", "compile", "compile_many"]

DEFAULT_BUDGET, DEFAULT_OPTIONS = CompileBudget(), CompileOptions()
Latency = str | float  # "2ms", or seconds


@suggest_keywords
def compile(
    model: ModelLike,
    *,
    device: str | Device = HOST,
    goal: Latency | None = None,
    budget: CompileBudget = DEFAULT_BUDGET,
    options: CompileOptions = DEFAULT_OPTIONS,
    samples: Samples | None = None,
    save: str | Path | None = None,
    trust: bool = False,
    home: str | Path | None = None,
    on_event: Callable[[CompileEvent], None] | None = None,
) -> CompileResult:
    """Tune and compile the kernels of a model for a device, and compare the compiled model with onnxruntime.

    The library is written into the model's deployment folder. Every measured candidate is stored: an interrupted
    compilation resumes when it is called again with the same model, device and options, and later ones reuse it.

        result = onefold.compile("deploy/", goal="2ms", budget=onefold.CompileBudget(minutes=20))
        print(result.recommended, result.runtimes, result.why_stopped)

    Args:
        model: A deployment folder, an ONNX file, a workload (its file or name), or a torch.nn.Module with `samples`.
        device: Name of the device that will run the model, or a device.
        goal: Latency of the whole model at which tuning stops, such as "2ms", or in seconds.
        budget: Limits of time, energy, money or candidates.
        options: How to search and compile.
        samples: Samples of the model's inputs: one array per input, or the path of an .npz file. With 32 or more, the
            model quantized to int8 is one of the compared runtimes.
        save: Deployment folder to create for a model that has none; without it nothing is written for such a model.
        trust: Trust a deployment folder that this home did not write, so that its library is loaded here later.
        home: Folder of the store; by default $ONEFOLD_HOME, or else the user's data folder.
        on_event: Called with each measured ScheduleCandidate, each finished TuningRound, and a text that says what is
            being done.

    Returns:
        The latencies of all runtimes, the recommended one, the rounds and what this model cost.

    Raises:
        InputError: An argument is invalid, a file does not exist, or no TVM server answers at `options.remote`.
        BudgetError: A limit of the budget is invalid, or the device cannot meet the goal.
        ModelError: The model cannot be exported or run. One that TVM cannot compile is no error: onnxruntime serves it,
            or the parts that TVM cannot compile.
        DeviceError: The device is unknown, or kernels cannot be compiled for it.
        MissingExtra: `onefold[kernels]` is not installed.
    """
    (result,) = compile_many(
        [model], goals=[goal], device=device, budget=budget, options=options, samples=samples, save=save, trust=trust,
        home=home, on_event=on_event,
    )  # fmt: skip
    return result


@suggest_keywords
def compile_many(
    models: Sequence[ModelLike],
    *,
    device: str | Device = HOST,
    goals: Sequence[Latency | None] = (),
    budget: CompileBudget = DEFAULT_BUDGET,
    options: CompileOptions = DEFAULT_OPTIONS,
    samples: Samples | None = None,
    save: str | Path | None = None,
    trust: bool = False,
    home: str | Path | None = None,
    on_event: Callable[[CompileEvent], None] | None = None,
) -> list[CompileResult]:
    """Tune and compile the kernels of several models for a device within one budget.

    Operators that models share are tuned once, and a model that has met its goal leaves the budget to the others.

    Args:
        models: The models; see `compile`.
        device: Name of the device that will run the models, or a device.
        goals: Latencies at which the models are fast enough, one for each, or a single one for all; None for a model
            without a goal.
        budget: Limits of time, energy, money or candidates, for all models together.
        options: How to search and compile.
        samples: Samples of the models' inputs; see `compile`.
        save: Folder in which to create a deployment folder for each model that has none.
        trust: Trust deployment folders that this home did not write; see `compile`.
        home: Folder of the store.
        on_event: Called with candidates, rounds and texts; see `compile`.

    Returns:
        A result for each model, in their order.

    Raises:
        OnefoldError: See `compile`.
    """
    if not models:
        raise InputError("no models to compile: give at least one")
    goals_s = _parse_goals(goals, len(models))
    budget.check()
    options.check()
    check_strategy(options.strategy)
    home_folder = Home(home)
    target = device if isinstance(device, Device) else find_device(device, home_folder.devices)
    with scratch_folder() as folder:
        target_folder = None if save is None else Path(save)
        sources = load_models(
            models, samples, folder, target_folder, options.batch_size, trust=trust, home=home_folder.path
        )
        return Compilation(
            sources, target, budget, options, home_folder, folder, goals_s, GuardedCallback(on_event)
        ).run()


def _parse_goals(goals: Sequence[Latency | None], models: int) -> list[float | None]:
    """Return a goal in seconds for each model. Raises InputError or BudgetError for unusable goals."""
    given = list(goals) or [None]
    each = given * models if len(given) == 1 else given
    if len(each) != models:
        raise InputError(f"got {len(given)} goals for {count(models, 'model')}: give one for all or one for each")
    goals_s = [None if goal is None else parse_seconds(goal) for goal in each]
    for goal_s in goals_s:
        if goal_s is not None and not goal_s > 0:
            raise BudgetError(f"a goal must be above 0, got {goal_s:g} s")
    return goals_s
