"""Exchange the weights in an ONNX file for those that a network has now, without exporting it again.

An export traces the network, which takes seconds and several times the memory of its weights. After training, only the
values of the initializers are different. Each one is found by comparing it with the weights that the file was exported
from: it has a weight's name or value, or is its transpose, or a convolution folded with the BatchNorm behind it. The
file is read and written piece by piece, without the onnx package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from torch import Tensor, nn

TOLERANCE = 1e-4  # of a folded convolution, relative to its largest weight
COPIED_BYTES = 2**22  # at once
# Numbers of fields of ONNX's messages ModelProto, GraphProto and TensorProto, and of TensorProto.DataType.
_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
_FLOATS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


@dataclass(frozen=True, slots=True)
class Initializer:
    """One initializer of an ONNX file, and where its values are in the file."""

    name: str
    shape: tuple[int, ...]
    data_type: int
    offset: int  # -1 if its values are not stored as raw data
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Replacement:
    initializer: Initializer
    value: Callable[[], Tensor]  # from the weights as they are


class WeightExchange:
    """Writes an ONNX file again with the weights that its network has at the time."""

    def __init__(self, path: Path, network: nn.Module, replacements: Iterable[_Replacement]) -> None:
        self.path = path
        self._weights = list(_weights(network).values())
        self._replacements = sorted(replacements, key=lambda entry: entry.initializer.offset)

    @classmethod
    def of(cls, network: nn.Module, path: Path) -> WeightExchange | None:
        """Return the exchange for a file that was exported from the network with its present weights.

        Returns None if it is not known for every floating-point initializer which weights it was computed from, or if
        a weight is in no initializer: the file has to be exported again.
        """
        with path.open("rb") as file:
            try:
                entries = list(initializers(file))
            except (ValueError, EOFError, UnicodeDecodeError):
                return None
            floating = [entry for entry in entries if entry.data_type in _FLOATS]
            matching = _Matching(network)
            # Weights of convolutions first: they tell which BatchNorm a bias was folded with.
            for entry in sorted(floating, key=lambda entry: len(entry.shape) < 2):
                if entry.offset < 0 or not matching.explain(entry, _read(file, entry)):
                    return None
        return cls(path, network, matching.replacements) if matching.is_complete else None

    def fits(self, network: nn.Module) -> bool:
        """Return whether the network still has the weights, of the same shapes, that the exchange was made for."""
        weights = list(_weights(network).values())
        is_same = len(weights) == len(self._weights) and all(new is old for new, old in zip(weights, self._weights))
        return is_same and all(
            tuple(replacement.value().shape) == replacement.initializer.shape for replacement in self._replacements
        )

    def write(self, target: Path) -> None:
        """Write the file with the present weights to another path. Raises OSError if that fails."""
        with self.path.open("rb") as source, target.open("wb") as file:
            for replacement in self._replacements:
                entry = replacement.initializer
                _copy(source, file, entry.offset - source.tell())
                file.write(_content(replacement.value()))
                source.seek(entry.size_bytes, 1)
            _copy(source, file, None)


class _Matching:
    """Finds what the initializers of a file were computed from."""

    def __init__(self, network: nn.Module) -> None:
        from torch import nn

        self.replacements: list[_Replacement] = []
        self._tensors = _weights(network)
        self._covered: set[int] = set()  # addresses of the weights that some initializer has
        convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        self._convolutions: list[Any] = [part for part in network.modules() if isinstance(part, convolutions)]
        self._norms: list[Any] = [
            part for part in network.modules() if isinstance(part, norms) and part.running_var is not None
        ]
        self._scales_by_channels: dict[int, tuple[list[Any], Tensor]] = {}
        self._folded: list[tuple[Any, Any]] = []  # convolution and BatchNorm

    @property
    def is_complete(self) -> bool:
        """Whether every weight is in an initializer. Exporters merge weights that happen to be equal."""
        return all(tensor.data_ptr() in self._covered for tensor in self._tensors.values() if tensor.numel())

    def explain(self, entry: Initializer, values: Tensor) -> bool:
        """Find out what an initializer was computed from; return False if that is unknown or ambiguous."""
        import torch

        named = self._tensors.get(entry.name)
        if named is not None:
            return torch.equal(named.detach(), values) and self._replace(entry, lambda: named, named)
        sources: list[tuple[Callable[[], Tensor], tuple[Tensor, ...]]] = []
        for tensor in {tensor.data_ptr(): tensor for tensor in self._tensors.values()}.values():
            if torch.equal(tensor.detach(), values):
                sources.append((lambda tensor=tensor: tensor, (tensor,)))  # type: ignore[misc]
            elif tensor.dim() == values.dim() == 2 and torch.equal(tensor.detach().t(), values):
                sources.append((lambda tensor=tensor: tensor.t(), (tensor,)))  # type: ignore[misc]
        sources = sources or list(self._folded_from(values))
        if not sources:
            return values.numel() == 1  # a constant, such as a scale
        return len(sources) == 1 and self._replace(entry, sources[0][0], *sources[0][1])

    def _folded_from(self, values: Tensor) -> Iterator[tuple[Callable[[], Tensor], tuple[Tensor, ...]]]:
        if values.dim() == 1:
            for convolution, norm in self._folded:
                if norm.num_features == len(values) and _is_close(folded_bias(convolution, norm), values):
                    parts = (convolution.bias, norm.bias, norm.running_mean)
                    yield (
                        lambda convolution=convolution, norm=norm: folded_bias(convolution, norm),  # type: ignore[misc]
                        tuple(part for part in parts if part is not None),
                    )
            return
        norms, scales = self._scales(len(values))
        for convolution in self._convolutions:
            if not norms or convolution.weight.shape != values.shape:
                continue
            candidates = scales * _first_column(convolution.weight.detach())
            difference = (candidates - _first_column(values)).abs().amax(1)
            near = (difference <= TOLERANCE * (values.abs().max() + 1e-12)).tolist()
            for norm in (norm for norm, is_near in zip(norms, near) if is_near):
                if _is_close(folded_weight(convolution, norm), values):
                    self._folded.append((convolution, norm))
                    parts = (convolution.weight, norm.weight, norm.running_var)
                    yield (
                        lambda convolution=convolution, norm=norm: folded_weight(convolution, norm),  # type: ignore[misc]
                        tuple(part for part in parts if part is not None),
                    )

    def _scales(self, channels: int) -> tuple[list[Any], Tensor]:
        """Return the BatchNorms of so many channels, and their scales as rows."""
        import torch

        if channels not in self._scales_by_channels:
            norms = [norm for norm in self._norms if norm.num_features == channels]
            scales = torch.stack([_scale(norm) for norm in norms]) if norms else torch.empty(0)
            self._scales_by_channels[channels] = norms, scales
        return self._scales_by_channels[channels]

    def _replace(self, entry: Initializer, value: Callable[[], Tensor], *sources: Tensor) -> bool:
        self.replacements.append(_Replacement(entry, value))
        self._covered |= {source.data_ptr() for source in sources}
        return True


def _weights(network: nn.Module) -> dict[str, Tensor]:
    """Return the floating-point parameters and buffers by name."""
    tensors: Mapping[str, Tensor] = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


def _content(tensor: Tensor) -> memoryview:
    """Return the content of a tensor in row-major order."""
    import torch

    content: memoryview = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return content


def folded_weight(convolution: Any, norm: Any) -> Tensor:
    """Return the weight of a convolution with a BatchNorm folded in."""
    weight: Tensor = convolution.weight.detach()
    return weight * _scale(norm).reshape(-1, *[1] * (weight.dim() - 1))


def folded_bias(convolution: Any, norm: Any) -> Tensor:
    """Return the bias of a convolution with a BatchNorm folded in."""
    bias: Tensor = -norm.running_mean if convolution.bias is None else convolution.bias.detach() - norm.running_mean
    scaled = bias * _scale(norm)
    return scaled if norm.bias is None else scaled + norm.bias.detach()


def _scale(norm: Any) -> Tensor:
    scale: Tensor = (norm.running_var + norm.eps).rsqrt()
    return scale if norm.weight is None else scale * norm.weight.detach()


def _first_column(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1)[:, 0]


def _is_close(computed: Tensor, values: Tensor) -> bool:
    return bool((computed - values).abs().max() <= TOLERANCE * (values.abs().max() + 1e-12))


def initializers(file: BinaryIO) -> Iterator[Initializer]:
    """Yield the initializers of an ONNX file. Raises ValueError or EOFError if it is not one."""
    end = file.seek(0, 2)
    for number, start, size in _fields(file, 0, end):
        if number != _GRAPH:
            continue
        for inner, at, length in _fields(file, start, start + size):
            if inner == _INITIALIZER:
                yield _initializer(file, at, at + length)


def _initializer(file: BinaryIO, start: int, end: int) -> Initializer:
    name, data_type, offset, size_bytes = "", 0, -1, 0
    shape: list[int] = []
    for number, at, length in _fields(file, start, end):
        if number == _RAW_DATA:
            offset, size_bytes = at, length
            continue
        file.seek(at)
        if number == _NAME:
            name = file.read(length).decode()
        elif number == _DATA_TYPE:
            data_type = _varint(file)
        elif number == _DIMS:
            while file.tell() < at + length:
                shape.append(_varint(file))
    return Initializer(name, tuple(shape), data_type, offset, size_bytes)


def _fields(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, offset and size of each field of a message."""
    position = start
    while position < end:
        file.seek(position)
        key = _varint(file)
        wire, at = key & 7, file.tell()
        if wire == _VARINT:
            _varint(file)
            size = file.tell() - at
        elif wire == _BYTES:
            size = _varint(file)
            at = file.tell()
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"not an ONNX file: wire type {wire}")
        if at + size > end:
            raise ValueError("not an ONNX file: a field is longer than its message")
        yield key >> 3, at, size
        position = at + size


def _varint(file: BinaryIO) -> int:
    value = shift = 0
    while True:
        byte = file.read(1)
        if not byte:
            raise EOFError("the file ends within a number")
        value |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return value
        if shift > 63:
            raise ValueError("not an ONNX file: a number is too long")


def _read(file: BinaryIO, entry: Initializer) -> Tensor:
    import torch

    file.seek(entry.offset)
    dtype = getattr(torch, _FLOATS[entry.data_type])
    if not entry.size_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(bytearray(file.read(entry.size_bytes)), dtype=dtype).reshape(entry.shape)


def _copy(source: BinaryIO, target: BinaryIO, count: int | None) -> None:
    """Copy so many bytes, or all that are left."""
    while count is None or count > 0:
        part = source.read(COPIED_BYTES if count is None else min(count, COPIED_BYTES))
        if not part:
            return
        target.write(part)
        count = None if count is None else count - len(part)
