"""Which candidates are not worth measuring: those whose neighbours were all cold.

A small network learns latency, relative to what is usual for the operator, from what an operator is, where it runs and
what was decided. Its middle layer is a map on which candidates that behave alike lie in one direction; a candidate
whose nearest neighbours there, those of the same operator before others, were all cold is dropped, with a probability
that falls after each update of the cost model, so that a search is led at first and freer later. The map is drawn from
history, also that of other models and devices; without any, candidates are measured first.

Cold is here what is slower than the line where that has come to by now: whether a candidate was good when it was
measured, when nothing better was known, says nothing of whether another like it is worth measuring. The neighbours must
be clearly cold: when a search has come to its end, the brothers of the best are all a little slower than usual, and
without a margin the filter would drop what is about to be found.

What a search proposes is not what history is made of: the filter may be right about the one and wrong about the other.
So it is judged all along by what was measured although it would have been dropped, and drops nothing while too little
of that was cold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn

from onefold.kernels.loess import line_of
from onefold.vocabulary.kernels import Operator, ScheduleCandidate

EMBEDDED, MIDDLE = 10, 32
PLACES, VALUES = 48, 130  # decisions of a candidate at most; how many values of one are told apart
SHAPES = 12  # sizes of arguments
NEIGHBOURS = (3, 4, 5, 7)  # of which the fewest are taken that are right often enough; two agree by chance too often
NEARER = 0.3  # by which those of the same operator are, as cosines
SURE = 0.85
CLEARLY = 1.2  # times the usual latency is clearly cold
TRUSTED = 0.7  # of what it would drop must be cold
FORGOTTEN = 0.5  # of what is known about its judgement, when it learns anew
HELD_OUT = 8  # held-out candidates count at most, beside those that were measured since
ENOUGH = 64  # measured candidates, below which nothing is filtered
MORE = 1.5  # times as many candidates are known, and the network learns anew
FIRST, FALLS, LAST = 0.95, 0.95, 0.5  # the probability to drop: at first, what each update leaves of it, at least
EPOCHS, BATCH, PATIENCE = 40, 1024, 1
UPDATES = 20  # in an epoch, at least
RATE, LOWEST_RATE, DECAY = 3e-3, 1e-6, 1e-3

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Example:
    """A candidate as the network sees it."""

    operator: Operator
    device: str  # target and threads
    host: str
    sketch: int
    decisions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LabeledExample:
    """What became of a candidate."""

    key: str
    example: Example
    latency: float  # its logarithm, relative to the middle one of its operator; nan where it failed
    is_cold: bool
    is_clearly_cold: bool


@dataclass(frozen=True, slots=True)
class FilterFit:
    """How well the filter learned: on candidates that it did not learn from."""

    examples: int
    neighbours: int  # that must all be cold
    error: float  # of the logarithm of latency, as a share of its spread; 1 is no better than the mean
    precision: float | None  # of the held-out candidates that it would drop, the share that was cold
    dropped: float  # the share that it would drop
    doubted: int  # how many those are


class LatencyNetwork(nn.Module):
    """Embeddings of whole numbers, then 32, 32 and 1."""

    def __init__(self, kinds: int, devices: int, hosts: int) -> None:
        super().__init__()
        self.decisions = nn.Embedding(PLACES * VALUES, EMBEDDED, _weight=_as_they_are().repeat(PLACES, 1))
        self.words = nn.ModuleList(nn.Embedding(count + 1, EMBEDDED) for count in (kinds, devices, hosts, 8))
        self.enter = nn.Linear(EMBEDDED * (PLACES + 4) + SHAPES + 1, MIDDLE)
        self.middle = nn.Linear(MIDDLE, MIDDLE)
        self.leave = nn.Linear(MIDDLE, 1)

    def forward(self, numbers: Tensor, words: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """The middle layer and the latency."""
        parts = [self.decisions(numbers).flatten(1), *(each(words[:, at]) for at, each in enumerate(self.words)), sizes]
        middle = torch.relu(self.middle(torch.relu(self.enter(torch.cat(parts, 1)))))
        return middle, self.leave(middle).squeeze(1)


class ColdFilter:
    """Learns from history, then says which proposals to drop."""

    def __init__(self, seed: int = 0) -> None:
        self.neighbours = NEIGHBOURS[-1]
        self.fitted: FilterFit | None = None
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._words: list[dict[str, int]] = [{}, {}, {}]
        self._network: LatencyNetwork | None = None
        self._map: Tensor | None = None
        self._cold: Flags = np.zeros(0, bool)
        self._operators: list[Operator] = []
        self._met: set[str] = set()  # candidates that it knows of
        self._doubted = self._rightly = 0.0  # those that it would have dropped and were measured; that were cold

    @property
    def is_ready(self) -> bool:
        """Whether there was enough to learn from."""
        return self._network is not None

    @property
    def trust(self) -> float:
        """The share of what it would drop that is cold, as far as is known."""
        if self.fitted is None:
            return 0.0
        count = min(HELD_OUT, self.fitted.doubted)
        judged = count + self._doubted
        return (count * (self.fitted.precision or 0.0) + self._rightly) / judged if judged else 0.0

    def learn(self, histories: Mapping[Operator, Sequence[ScheduleCandidate]]) -> None:
        """From all that was measured; `histories` holds the candidates of each operator in their order."""
        known: list[LabeledExample] = []
        for operator, candidates in histories.items():
            latencies = [one.latency_s for one in candidates if one.latency_s is not None]
            middle = median(latencies or [1.0])
            usual = (line_of(latencies) or [0.0])[-1] or 0.0
            for one in candidates:
                example, latency = _example(operator, one), one.latency_s
                if latency is None:
                    known.append(
                        LabeledExample(one.key, example, math.nan, True, True)
                    )  # what fails is not worth trying again
                else:
                    relative = math.log(latency / middle)
                    known.append(LabeledExample(one.key, example, relative, latency > usual, latency > CLEARLY * usual))
        if sum(not math.isnan(one.latency) for one in known) < ENOUGH:
            return
        self._judge([one for one in known if one.key not in self._met])
        self._met |= {one.key for one in known}
        if self._network is None or self.fitted is None or len(known) >= MORE * self.fitted.examples:
            self._network = self._fit(known)
            self._doubted, self._rightly = FORGOTTEN * self._doubted, FORGOTTEN * self._rightly
        self._draw_map(self._network, known)

    def drops(self, examples: Sequence[Example], updates: int) -> list[bool]:
        """Of each proposal, whether to drop it, after so many updates of the cost model for this operator."""
        if self._network is None or not examples or self.trust < TRUSTED:
            return [False] * len(examples)
        epsilon = max(LAST, FIRST * FALLS**updates)
        return [bool(one and self._rng.random() < epsilon) for one in self._all_cold(examples)]

    def _judge(self, new: Sequence[LabeledExample]) -> None:
        """By what was measured since it last learned."""
        doubted = self._all_cold([one.example for one in new])
        self._doubted += int(doubted.sum())
        self._rightly += sum(one.is_cold for one, is_doubted in zip(new, doubted) if is_doubted)

    def _fit(self, known: Sequence[LabeledExample]) -> LatencyNetwork:
        for at, name in enumerate(("kind", "device", "host")):
            values = sorted({_word(one.example, name) for one in known})
            self._words[at] = {value: place for place, value in enumerate(values, 1)}  # 0: never seen
        examples = [one.example for one in known]
        latency = torch.tensor([one.latency for one in known], dtype=torch.float32)
        order = np.random.default_rng(self._seed).permutation(len(known))
        ends = [round(0.7 * len(known)), round(0.8 * len(known))]
        train, check, test = (torch.as_tensor(part) for part in np.split(order, ends))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            network = LatencyNetwork(*(len(words) for words in self._words))
        inputs = self._encoded(examples)
        with threadpool_limits(1):  # small matrices: beside another program, two threads took ten times as long
            _trained(network, inputs, latency, train, check)
        with torch.no_grad():
            middle, guess = network(*inputs)
        self.fitted = self._judged(known, middle, guess, train, check, test)
        return network

    def _draw_map(self, network: LatencyNetwork, known: Sequence[LabeledExample]) -> None:
        """Puts all that is known on the map, also what the network has not learned from."""
        examples = [one.example for one in known]
        with torch.no_grad():
            middle, _ = network(*self._encoded(examples))
        self._map = nn.functional.normalize(middle, dim=1)
        self._cold = np.array([one.is_clearly_cold for one in known])
        self._operators = [example.operator for example in examples]

    def _judged(
        self, known: Sequence[LabeledExample], middle: Tensor, guess: Tensor, train: Tensor, check: Tensor, test: Tensor
    ) -> FilterFit:
        """Sets how many neighbours must agree, by the candidates that training was checked on; then what it would have
        done with those that it has never seen."""
        operators = [one.example.operator for one in known]
        cold = np.array([one.is_cold for one in known])
        self._map = nn.functional.normalize(middle[train], dim=1)
        self._cold = np.array([known[at].is_clearly_cold for at in train])
        self._operators = [operators[at] for at in train]
        for self.neighbours in NEIGHBOURS:
            dropped = self._nearest_cold(middle[check], [operators[at] for at in check])
            if dropped.any() and cold[check.numpy()][dropped].mean() >= SURE:
                break
        dropped = self._nearest_cold(middle[test], [operators[at] for at in test])
        right = cold[test.numpy()][dropped]
        latency = torch.tensor([one.latency for one in known])[test]
        valid = ~latency.isnan()
        spread = float(latency[valid].var(correction=0)) if valid.any() else 0.0
        error = float(((guess[test][valid] - latency[valid]) ** 2).mean()) if valid.any() else math.nan
        return FilterFit(
            len(known), self.neighbours, error / spread if spread > 0 else math.nan,
            float(right.mean()) if len(right) else None, float(dropped.mean()) if len(dropped) else 0.0, len(right),
        )  # fmt: skip

    def _all_cold(self, examples: Sequence[Example]) -> Flags:
        if self._network is None or not examples:
            return np.zeros(len(examples), bool)
        with torch.no_grad():
            middle, _ = self._network(*self._encoded(examples))
        return self._nearest_cold(middle, [example.operator for example in examples])

    def _nearest_cold(self, middle: Tensor, operators: Sequence[Operator]) -> Flags:
        """Whether the nearest neighbours, among candidates for the same kind of operator, are all clearly cold."""
        found = np.zeros(len(middle), bool)
        if self._map is None or len(self._map) < self.neighbours:
            return found
        likeness = nn.functional.normalize(middle, dim=1) @ self._map.T
        likeness += NEARER * _alike([one.key for one in operators], [one.key for one in self._operators])
        likeness[~_alike([one.kind for one in operators], [one.kind for one in self._operators])] = -2.0
        nearest = likeness.topk(self.neighbours, dim=1)
        for at in range(len(middle)):
            if float(nearest.values[at, -1]) > -2.0:
                found[at] = bool(self._cold[nearest.indices[at].numpy()].all())
        return found

    def _encoded(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
        numbers = torch.zeros(len(examples), PLACES, dtype=torch.long)
        words = torch.zeros(len(examples), 4, dtype=torch.long)
        sizes = torch.zeros(len(examples), SHAPES + 1)
        for at, one in enumerate(examples):
            for place, value in enumerate(one.decisions[:PLACES]):
                numbers[at, place] = _bucket(value)
            for which, name in enumerate(("kind", "device", "host")):
                words[at, which] = self._words[which].get(_word(one, name), 0)
            words[at, 3] = min(one.sketch + 1, 8)
            flat = [int(size) for shape in one.operator.shapes for size in shape.split("x")]
            for place, size in enumerate(flat[:SHAPES]):
                sizes[at, place] = math.log2(1 + size) / 10
            sizes[at, SHAPES] = math.log10(1 + one.operator.flops) / 10
        return numbers + torch.arange(PLACES) * VALUES, words, sizes


def _trained(
    network: LatencyNetwork, inputs: tuple[Tensor, Tensor, Tensor], latency: Tensor, train: Tensor, check: Tensor
) -> None:
    """Until the rate has fallen to nothing, or for so many epochs. Latencies are logarithms: they span two orders."""
    train, check = (part[~latency[part].isnan()] for part in (train, check))
    middle = latency[train].mean()
    with torch.no_grad():
        network.leave.bias.fill_(float(middle))
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, weight_decay=DECAY)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=PATIENCE, min_lr=LOWEST_RATE)
    batch = min(BATCH, max(16, len(train) // UPDATES))
    passes = max(1, UPDATES * batch // max(1, len(train)))  # of a few examples, so that an epoch means something
    shuffled = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        order = torch.cat([train[torch.randperm(len(train), generator=shuffled)] for _ in range(passes)])
        for part in order.split(batch):  # type: ignore[no-untyped-call]
            _, guess = network(*(one[part] for one in inputs))
            loss = nn.functional.mse_loss(guess, latency[part])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            _, guess = network(*(one[check] for one in inputs))
            plateau.step(float(nn.functional.mse_loss(guess, latency[check])) if len(check) else 0.0)
        if optimizer.param_groups[0]["lr"] <= LOWEST_RATE:
            break


def _alike(some: Sequence[str], others: Sequence[str]) -> Tensor:
    """Which of some are the same as which of the others."""
    return torch.as_tensor(np.array(some)[:, None] == np.array(others)[None, :])


def _example(operator: Operator, candidate: ScheduleCandidate) -> Example:
    return Example(
        operator, f"{candidate.target} x{candidate.threads}", candidate.machine, candidate.sketch, candidate.decisions
    )


def _word(example: Example, name: str) -> str:
    return example.operator.kind if name == "kind" else str(getattr(example, name))


def _as_they_are() -> Tensor:
    """Where the embeddings of decisions begin: size, and what vectors fit; a few hundred examples cannot teach that."""
    found = torch.zeros(VALUES, EMBEDDED)
    for value in range(-2, 97):
        row = found[_bucket(value)]
        row[0] = math.log2(1 + max(0, value)) / 4
        row[1] = float(value < 0)
        row[2] = float(value == 0)
        row[3] = float(value == 1)
        for at, width in enumerate((2, 3, 4, 8, 16, 32), 4):
            row[at] = float(value > 0 and value % width == 0)
    for place in range(_bucket(97), VALUES):
        found[place, 0] = math.log2(97 * 2 ** ((place - 100) / 4)) / 4
        found[place, 4:] = 1.0
    return found


def _bucket(value: int) -> int:
    """Places before the beginning, small numbers one by one, large ones by their logarithm; 0 is nothing at all."""
    if value < 0:
        return 1 if value == -1 else 2
    if value <= 96:
        return 3 + value
    return min(VALUES - 1, 100 + round(4 * math.log2(value / 96)))
