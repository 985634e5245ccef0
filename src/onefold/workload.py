"""What the user brings: a model, its data, and how to train and score it.

`build`, `data` and `space` are enough. Everything else has a default that is one method to override:

    check        refuse a configuration, with a reason          loss         of a batch
    optimizer    from the configuration                         schedule     of the learning rate, per epoch
    batches      how a split is cut                             step         one batch: forward, backward, update
    train_epoch  a special loop                                 metrics      of all outputs of a split
    evaluate     a special evaluation

torch is imported inside the methods, so that describing a workload costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from onefold.errors import OnefoldError, Rejected, WorkloadError, suggestion
from onefold.objective import Objective
from onefold.records import Config, Metrics
from onefold.space import Space

COMPRESSED = "compressed+"
_loading: ContextVar[bool] = ContextVar("loading", default=False)


class Split(Protocol):
    """One part of the data, as the training loop hands it to the workload."""

    def __len__(self) -> int: ...

    def batches(self, size: int, generator: Any = None) -> Iterator[Any]:
        """The split in batches of `size` on the accelerator, shuffled by `generator` or as it stands.

        With a generator, a last batch of one sample is left out where the others have more.
        """


@dataclass(frozen=True)
class Data:
    """The three parts of a data set.

    Each part is a tuple of arrays or tensors of equal length, the targets last, or a torch `Dataset`. Arrays are shared
    between worker processes; a `Dataset` is loaded by each. Without `validation`, a fifth of `train` is kept back.
    """

    train: Any
    validation: Any = None
    test: Any = None


class Workload:
    """Model + data + how to train and score. One instance serves all trials: keep no state of a trial in it."""

    space: Space = Space()
    objective: Objective = Objective(maximize="accuracy")

    @property
    def name(self) -> str:
        """What studies of this workload are called."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    def build(self, config: Config) -> Any:
        """The network of a configuration, with fresh weights."""
        raise NotImplementedError(f"{type(self).__name__} must define build(self, config) -> torch.nn.Module")

    def data(self) -> Data:
        """The data set; called once per study where its parts are arrays."""
        raise NotImplementedError(f"{type(self).__name__} must define data(self) -> onefold.Data")

    def check(self, config: Config) -> None:
        """Raises `onefold.Rejected("why")` when a configuration makes no sense; another is drawn in its place."""

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:  # noqa: ARG002 - for overriding
        """Cross entropy for class numbers, mean squared error for anything else."""
        from torch.nn import functional

        if targets.is_floating_point():
            return functional.mse_loss(outputs.reshape(targets.shape), targets)
        return functional.cross_entropy(outputs, targets)

    def optimizer(self, model: Any, config: Config) -> Any:
        """From `optimizer` (adam, adamw, sgd, rmsprop), `lr`, `momentum`, `weight_decay`, where the space has them."""
        import torch

        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        kinds["rmsprop"] = torch.optim.RMSprop
        kind = str(config.get("optimizer", "adam"))
        if kind not in kinds:
            raise WorkloadError(f"the optimizer {kind!r} is not known{suggestion(kind, kinds)}")
        options: dict[str, Any] = {"lr": config.get("lr", 1e-3)}
        if kind in ("sgd", "rmsprop"):
            options["momentum"] = config.get("momentum", 0.0)
        return kinds[kind](model.parameters(), weight_decay=config.get("weight_decay", 0.0), **options)

    def schedule(self, optimizer: Any, config: Config, epochs: int) -> Any:  # noqa: ARG002 - for overriding
        """A torch learning-rate scheduler, stepped after each of at most `epochs` epochs, or None."""
        return None

    def batches(self, split: Split, config: Config, generator: Any = None) -> Iterable[Any]:
        """How a split is cut for training; `batch_size` of the space, 64 without one."""
        return split.batches(int(config.get("batch_size", 64) or 64), generator)

    def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
        """Learns from one batch and returns its loss."""
        *inputs, targets = batch
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss(model(*inputs), targets, config)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def train_epoch(self, model: Any, batches: Iterable[Any], optimizer: Any, config: Config) -> Metrics:
        """One pass over the batches; returns what to record of it."""
        losses = [self.step(model, batch, optimizer, config) for batch in batches]
        return {"train_loss": float(sum(losses) / max(1, len(losses)))}

    def metrics(self, outputs: Any, targets: Any, config: Config) -> Metrics:
        """What to record of a split's outputs: the loss, and accuracy for class numbers or rmse for anything else."""
        loss = float(self.loss(outputs, targets, config))
        if targets.is_floating_point():
            return {"loss": loss, "rmse": float((outputs.reshape(targets.shape) - targets).square().mean().sqrt())}
        return {"loss": loss, "accuracy": float((outputs.argmax(dim=1) == targets).float().mean())}

    def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:
        """The metrics of a model that is already in evaluation mode, without gradients."""
        import torch

        outputs, targets = [], []
        for *inputs, target in batches:
            outputs.append(model(*inputs))
            targets.append(target)
        return self.metrics(torch.cat(outputs), torch.cat(targets), config)


def reason_against(check: Callable[[Config], None], config: Config) -> str | None:
    """Why a workload's check refuses a configuration, if it does."""
    try:
        check(config)
    except Rejected as verdict:
        return str(verdict) or "no reason given"
    except OnefoldError:
        raise
    except Exception as error:
        told = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise WorkloadError(
            f"check may raise Rejected and nothing else, but for {config!r} it raised {told}"
        ) from error
    return None


def load(reference: str) -> Workload:
    """The workload that `file.py`, `file.py:Class`, `package.module:Class` or the name of a ready one stands for.

    A package is looked for in the current folder first. `compressed+` before any of them makes its trials variants.
    """
    if reference.startswith(COMPRESSED):
        inner = load(reference.removeprefix(COMPRESSED))
        compressed: Workload = importlib.import_module("onefold.compression.in_loop").CompressedWorkload(inner)
        return compressed
    place, _, wanted = reference.partition(":")
    ready: dict[str, str] = importlib.import_module("onefold.workloads").READY
    if not wanted and place in ready:
        return load(ready[place])
    path = Path(place).expanduser()
    if path.suffix == ".py" or path.is_file():
        module = _module_of_file(path)
    elif re.fullmatch(r"[A-Za-z_][\w.]*", place) and ("." in place or wanted):
        module = _module_of_name(place)
    else:
        raise WorkloadError(f"{place!r} is neither a Python file nor a ready workload{suggestion(place, ready)}")
    return _instance(_choose(module, wanted, reference), reference)


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise WorkloadError(f"there is no file {str(path)!r}; give the Python file that holds your workload")
    path = path.resolve()
    name = f"onefold_workload_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{str(path)!r} is not a Python file")
    if str(path.parent) not in sys.path:  # a workload may import its neighbours
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _explained(str(path)):
        spec.loader.exec_module(module)
    return module


def _module_of_name(name: str) -> ModuleType:
    top = Path(name.partition(".")[0])
    if top.is_dir() or top.with_suffix(".py").is_file():  # a package of the current folder need not be installed
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
    with _explained(name):
        return importlib.import_module(name)


@contextmanager
def _explained(place: str) -> Iterator[None]:
    token = _loading.set(True)
    try:
        yield
    except OnefoldError:
        raise
    except SyntaxError as error:
        raise WorkloadError(f"{place} is not valid Python: {error.msg} in line {error.lineno}") from error
    except Exception as error:
        raise WorkloadError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        _loading.reset(token)


def is_loading() -> bool:
    """Whether a file of workloads is being imported right now."""
    return _loading.get()


def _choose(module: ModuleType, wanted: str, reference: str) -> type[Workload]:
    found = {
        name: thing
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and issubclass(thing, Workload) and thing.__module__ == module.__name__
    }
    if wanted:
        if wanted not in found:
            raise WorkloadError(f"{reference.partition(':')[0]} has no workload {wanted!r}{suggestion(wanted, found)}")
        return found[wanted]
    if not found:
        raise WorkloadError(
            f"{reference} has no workload: define a class that derives from onefold.Workload "
            "and has a space, build(self, config) and data(self)"
        )
    if len(found) > 1:
        raise WorkloadError(f"{reference} has several workloads; choose one: {reference}:{' or :'.join(found)}")
    return next(iter(found.values()))


def _instance(kind: type[Workload], reference: str) -> Workload:
    try:
        return kind()
    except TypeError as error:
        raise WorkloadError(f"{reference} cannot be made without arguments: {error}") from error
