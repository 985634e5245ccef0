"""The head of a classifier: the last linear layer, with a row per class. It can be found, and grown by more classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onefold.vocabulary.errors import InputError

MASK_MARGIN = 10.0  # of a masked class below the lowest logit
PROBE_LOGIT_TOLERANCE = 1e-3  # relative: a probed network may round differently


@dataclass
class ClassificationHead:
    """An `nn.Linear` or a 1x1 convolution whose outputs are the logits of a network."""

    name: str  # of the module in the network
    module: nn.Module

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.weight.shape[0])

    @property
    def weight(self) -> Tensor:
        """The weights, a row per class."""
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        return weight

    @property
    def bias(self) -> Tensor | None:
        """The biases, one per class, if there are any."""
        bias: Tensor | None = self.module.bias  # type: ignore[assignment]
        return bias

    @property
    def features(self) -> int:
        """Number of inputs."""
        return int(self.weight.shape[1])

    def grow(self, classes: int) -> GrownHead:
        """Append rows of zeros for new classes. The old rows are kept exactly."""
        grown = GrownHead(self.name, self.module, self.module.weight, self.module.bias)  # type: ignore[arg-type]
        self._replace("weight", self.weight, classes)
        if self.bias is not None:
            self._replace("bias", self.bias, classes)
        _declare_classes(self.module, classes)
        return grown

    def _replace(self, name: str, old: Tensor, classes: int) -> None:
        new = old.new_zeros((classes, *old.shape[1:]))
        new[: len(old)] = old.detach()
        setattr(self.module, name, nn.Parameter(new, requires_grad=old.requires_grad))


@dataclass
class GrownHead(ClassificationHead):
    """A head that has rows for new classes after those of the old ones."""

    given_weight: nn.Parameter
    given_bias: nn.Parameter | None

    @property
    def old_classes(self) -> int:
        """Number of classes of the given head."""
        return len(self.given_weight)

    def give_back(self) -> None:
        """Return to the given head."""
        self.module.weight = self.given_weight
        self.module.bias = self.given_bias  # type: ignore[assignment]
        _declare_classes(self.module, self.old_classes)

    @contextmanager
    def masked(self) -> Iterator[None]:
        """Let the new classes have the lowest logits: the network then predicts as with its given head."""

        def mask(_: nn.Module, __: Any, logits: Tensor) -> Tensor:
            old, new = _split(logits, self.module, self.old_classes)
            lowest = old.amin(_class_dim(self.module), keepdim=True) - MASK_MARGIN
            return torch.cat([old, lowest.expand_as(new)], _class_dim(self.module))

        handle = self.module.register_forward_hook(mask)
        try:
            yield
        finally:
            handle.remove()


def find_head(network: nn.Module, inputs: Sequence[Tensor], classes: int) -> ClassificationHead | None:
    """Return the layer whose outputs are the logits, by tracing the network on a few samples; None if there is none.

    The network is in evaluation mode. A layer is the head if a class that is added to it becomes a class of the
    network, and the logits of the others stay the same.
    """
    names = {module: name for name, module in network.named_modules()}
    called: list[nn.Module] = []
    candidates = [module for module in names if _is_candidate(module, network, classes)]
    handles = [module.register_forward_hook(lambda module, *_: called.append(module)) for module in candidates]
    try:
        with torch.no_grad():
            logits = network(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    for module in reversed(called):  # the logits come last
        head = ClassificationHead(names[module], module)
        if called.count(module) == 1 and _produces_logits(network, inputs, logits, head):
            return head
    return None


def head_named(network: nn.Module, name: str, classes: int, weight_bytes: int) -> ClassificationHead:
    """Return the layer of that name, to be grown to this many classes.

    `weight_bytes` is the size of the file with the weights, which bounds what is allocated. Raises InputError if the
    network has no such layer.
    """
    try:
        module = network.get_submodule(name)
    except AttributeError:
        module = None
    if not isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        raise InputError(f"the model has a head {name!r}, but the network has no linear layer of that name")
    head = ClassificationHead(name, module)
    if not head.classes <= classes <= weight_bytes // head.features:
        raise InputError(f"the head {name!r} has {head.classes} classes, and cannot have {classes}")
    return head


def _produces_logits(network: nn.Module, inputs: Sequence[Tensor], logits: Tensor, head: ClassificationHead) -> bool:
    grown = head.grow(head.classes + 1)
    try:
        with torch.no_grad(), grown.masked():
            probed = network(*inputs)
    except Exception:  # noqa: BLE001 - a layer after it expects as many features as before
        return False
    finally:
        grown.give_back()
    if not isinstance(probed, Tensor) or probed.shape != (len(logits), logits.shape[1] + 1, *logits.shape[2:]):
        return False
    # A log-softmax after the head subtracts a constant of each sample.
    difference = (probed[:, :-1] - logits).float()
    spread = (difference - difference.mean(1, keepdim=True)).abs().max()
    return bool(spread <= PROBE_LOGIT_TOLERANCE * logits.float().abs().max().clamp_min(1e-6))


def _is_candidate(module: nn.Module, network: nn.Module, classes: int) -> bool:
    if type(module) not in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d) or "weight" not in module._parameters:
        return False
    weight = module._parameters["weight"]
    is_pointwise = isinstance(module, nn.Linear) or (set(module.kernel_size) == {1} and module.groups == 1)  # type: ignore[arg-type]
    owners = [other for other in network.modules() for own in other._parameters.values() if own is weight]
    return bool(is_pointwise) and weight is not None and len(weight) == classes and owners == [module]


def _declare_classes(module: nn.Module, classes: int) -> None:
    setattr(module, "out_features" if isinstance(module, nn.Linear) else "out_channels", classes)


def _class_dim(module: nn.Module) -> int:
    """Return the dimension of the classes in the outputs of a head."""
    return -1 if isinstance(module, nn.Linear) else 2 - int(module.weight.dim()) - 1  # type: ignore[operator]


def _split(logits: Tensor, module: nn.Module, classes: int) -> tuple[Tensor, Tensor]:
    dim = _class_dim(module)
    return logits.narrow(dim, 0, classes), logits.narrow(dim, classes, logits.shape[dim] - classes)
