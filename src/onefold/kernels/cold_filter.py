"""Drops proposals that are predicted to be slow (cold) before they are built.

A small network predicts a candidate's latency, relative to the operator's median, from the operator, the device and the
decisions. Its hidden layer serves as an embedding: candidates with similar latencies have a high cosine similarity. A
proposal is dropped if all of its nearest neighbors, those of the same operator preferred, are cold, with a probability
epsilon that decays with each update of the cost model, so that the search is guided first and freer later. The network
learns from the whole history, including other models and devices; nothing is dropped until there is enough of it.

A candidate is cold if its latency is above the current LOESS fit, wherever in the search it was measured: whether it
was good at that time does not tell whether a similar one is worth measuring now. Neighbors must be cold by a margin:
near the end of a search, candidates close to the best are all slightly slower than usual, and without a margin the
filter would drop what is about to be found.

Proposals of a search are distributed differently from the history, so the precision of the filter is estimated
continuously from candidates that were measured although it would have dropped them. It drops nothing while that
precision is too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn

from onefold.kernels.loess import fit_latencies
from onefold.vocabulary.kernels import Operator, ScheduleCandidate

EMBEDDING_SIZE, HIDDEN_SIZE = 10, 32
MAX_DECISIONS, DECISION_BUCKETS = 48, 130
MAX_SKETCHES = 8
MAX_SIZES = 12  # dimensions of the operator's arguments
NEIGHBOR_COUNTS = (3, 4, 5, 7)  # the smallest that is precise enough is used; two agree by chance too often
SAME_OPERATOR_BONUS = 0.3  # added to the cosine similarity
REQUIRED_PRECISION = 0.85  # on the validation split, for a number of neighbors
COLD_MARGIN = 1.2  # times the LOESS fit is clearly cold
MIN_PRECISION = 0.7  # of the running estimate, to drop anything
PRECISION_DECAY = 0.5  # of the running counts on each training
HELD_OUT_WEIGHT = 8  # held-out candidates count at most this much in the running estimate
MIN_CANDIDATES = 64  # measured, to train at all
RETRAIN_FACTOR = 1.5  # train again when there are this many times as many candidates
FIRST_EPSILON, EPSILON_DECAY, MIN_EPSILON = 0.95, 0.95, 0.5
EPOCHS, BATCH_SIZE, PATIENCE = 40, 1024, 1
MIN_UPDATES_PER_EPOCH = 20
LEARNING_RATE, MIN_LEARNING_RATE, WEIGHT_DECAY = 3e-3, 1e-6, 1e-3
EXCLUDED = -2.0  # similarity of operators of another kind, below every cosine
CATEGORICAL = ("kind", "device", "host")
EXACT_VALUES = 96  # decisions up to this value have a bucket each

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class CandidateFeatures:
    """The features of a candidate for the network."""

    operator: Operator
    device: str  # target and threads
    host: str
    sketch: int
    decisions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LabeledExample:
    """A measured candidate with its labels."""

    key: str
    features: CandidateFeatures
    log_latency: float  # relative to the operator's median; NaN if it failed
    is_cold: bool
    is_clearly_cold: bool


@dataclass(frozen=True, slots=True)
class FilterFit:
    """The quality of a trained filter on held-out candidates."""

    examples: int
    neighbors: int  # that must all be cold
    error: float  # mean squared error of the log latency relative to its variance; 1 is no better than the mean
    precision: float | None  # share of cold ones among those it would drop; None if it would drop none
    drop_share: float  # share that it would drop
    drop_count: int  # number that it would drop


class LatencyNetwork(nn.Module):
    """Embeddings of decisions and categories, followed by three linear layers."""

    def __init__(self, kinds: int, devices: int, hosts: int) -> None:
        super().__init__()
        rows = _initial_embedding().repeat(MAX_DECISIONS, 1)
        self.decisions = nn.Embedding(MAX_DECISIONS * DECISION_BUCKETS, EMBEDDING_SIZE, _weight=rows)
        counts = (kinds, devices, hosts, MAX_SKETCHES)
        self.categories = nn.ModuleList(nn.Embedding(count + 1, EMBEDDING_SIZE) for count in counts)
        self.first = nn.Linear(EMBEDDING_SIZE * (MAX_DECISIONS + len(counts)) + MAX_SIZES + 1, HIDDEN_SIZE)
        self.hidden = nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE)
        self.output = nn.Linear(HIDDEN_SIZE, 1)

    def forward(self, decisions: Tensor, categories: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden layer and the predicted log latency."""
        embedded = [embed(categories[:, at]) for at, embed in enumerate(self.categories)]
        inputs = torch.cat([self.decisions(decisions).flatten(1), *embedded, sizes], 1)
        hidden = torch.relu(self.hidden(torch.relu(self.first(inputs))))
        return hidden, self.output(hidden).squeeze(1)


class ColdFilter:
    """Learns from measured candidates and selects the proposals to drop."""

    def __init__(self, seed: int = 0) -> None:
        self.neighbors = NEIGHBOR_COUNTS[-1]
        self.fit: FilterFit | None = None
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._vocabularies: list[dict[str, int]] = [{}, {}, {}]
        self._network: LatencyNetwork | None = None
        self._embeddings: Tensor | None = None  # normalized, of all known candidates
        self._clearly_cold: Flags = np.zeros(0, bool)
        self._operators: list[Operator] = []
        self._known_keys: set[str] = set()
        self._drop_count = self._cold_count = 0.0  # measured candidates it would have dropped; cold ones among them

    @property
    def is_ready(self) -> bool:
        """Return whether the network has been trained."""
        return self._network is not None

    @property
    def precision(self) -> float:
        """Return the estimated share of cold candidates among those that it would drop."""
        if self.fit is None:
            return 0.0
        held_out = min(HELD_OUT_WEIGHT, self.fit.drop_count)
        total = held_out + self._drop_count
        return (held_out * (self.fit.precision or 0.0) + self._cold_count) / total if total else 0.0

    def learn(
        self,
        histories: Mapping[Operator, Sequence[ScheduleCandidate]],
        is_affordable: Callable[[], bool] = lambda: True,
    ) -> None:
        """Learn from all candidates, given by operator in measurement order; do nothing if there are too few.

        The network is trained for another epoch, after the first, only while that is affordable.
        """
        examples = [example for operator, history in histories.items() for example in _label(operator, history)]
        if sum(not math.isnan(example.log_latency) for example in examples) < MIN_CANDIDATES:
            return
        self._update_precision([example for example in examples if example.key not in self._known_keys])
        self._known_keys |= {example.key for example in examples}
        if self._network is None or self.fit is None or len(examples) >= RETRAIN_FACTOR * self.fit.examples:
            self._network = self._train(examples, is_affordable)
            self._drop_count, self._cold_count = PRECISION_DECAY * self._drop_count, PRECISION_DECAY * self._cold_count
        self._embed_known(self._network, examples)

    def select_dropped(self, proposals: Sequence[CandidateFeatures], updates: int) -> list[bool]:
        """Return for each proposal whether to drop it, after this many updates of the cost model for the operator."""
        if self._network is None or not proposals or self.precision < MIN_PRECISION:
            return [False] * len(proposals)
        epsilon = max(MIN_EPSILON, FIRST_EPSILON * EPSILON_DECAY**updates)
        return [bool(is_cold and self._rng.random() < epsilon) for is_cold in self._predict_cold(proposals)]

    def _update_precision(self, new: Sequence[LabeledExample]) -> None:
        """Update the running estimate with candidates that were measured since the last call."""
        predicted = self._predict_cold([example.features for example in new])
        self._drop_count += int(predicted.sum())
        self._cold_count += sum(example.is_cold for example, is_predicted in zip(new, predicted) if is_predicted)

    def _train(self, examples: Sequence[LabeledExample], is_affordable: Callable[[], bool]) -> LatencyNetwork:
        for at, name in enumerate(CATEGORICAL):
            values = sorted({_category(example.features, name) for example in examples})
            self._vocabularies[at] = {value: index for index, value in enumerate(values, 1)}  # 0 is unknown
        latency = torch.tensor([example.log_latency for example in examples], dtype=torch.float32)
        order = np.random.default_rng(self._seed).permutation(len(examples))
        ends = [round(0.7 * len(examples)), round(0.8 * len(examples))]
        train, validation, test = (torch.as_tensor(part) for part in np.split(order, ends))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            network = LatencyNetwork(*(len(vocabulary) for vocabulary in self._vocabularies))
        inputs = self._encode([example.features for example in examples])
        with threadpool_limits(1):  # small matrices: under contention, two threads took ten times as long
            _fit_network(network, inputs, latency, train, validation, is_affordable)
        with torch.no_grad():
            hidden, predicted = network(*inputs)
        self.fit = self._evaluate(examples, hidden, predicted, train, validation, test)
        return network

    def _embed_known(self, network: LatencyNetwork, examples: Sequence[LabeledExample]) -> None:
        """Embed all known candidates, including those that the network was not trained on."""
        features = [example.features for example in examples]
        with torch.no_grad():
            hidden, _ = network(*self._encode(features))
        self._embeddings = nn.functional.normalize(hidden, dim=1)
        self._clearly_cold = np.array([example.is_clearly_cold for example in examples])
        self._operators = [example.operator for example in features]

    def _evaluate(
        self,
        examples: Sequence[LabeledExample],
        hidden: Tensor,
        predicted: Tensor,
        train: Tensor,
        validation: Tensor,
        test: Tensor,
    ) -> FilterFit:
        """Choose the number of neighbors on the validation split, then evaluate the filter on the test split."""
        operators = [example.features.operator for example in examples]
        is_cold = np.array([example.is_cold for example in examples])
        self._embeddings = nn.functional.normalize(hidden[train], dim=1)
        self._clearly_cold = np.array([examples[at].is_clearly_cold for at in train])
        self._operators = [operators[at] for at in train]
        for self.neighbors in NEIGHBOR_COUNTS:
            dropped = self._neighbors_cold(hidden[validation], [operators[at] for at in validation])
            if dropped.any() and is_cold[validation.numpy()][dropped].mean() >= REQUIRED_PRECISION:
                break
        dropped = self._neighbors_cold(hidden[test], [operators[at] for at in test])
        correct = is_cold[test.numpy()][dropped]
        latency = torch.tensor([example.log_latency for example in examples])[test]
        valid = ~latency.isnan()
        variance = float(latency[valid].var(correction=0)) if valid.any() else 0.0
        error = float(((predicted[test][valid] - latency[valid]) ** 2).mean()) if valid.any() else math.nan
        return FilterFit(
            examples=len(examples),
            neighbors=self.neighbors,
            error=error / variance if variance > 0 else math.nan,
            precision=float(correct.mean()) if len(correct) else None,
            drop_share=float(dropped.mean()) if len(dropped) else 0.0,
            drop_count=len(correct),
        )

    def _predict_cold(self, features: Sequence[CandidateFeatures]) -> Flags:
        if self._network is None or not features:
            return np.zeros(len(features), bool)
        with torch.no_grad():
            hidden, _ = self._network(*self._encode(features))
        return self._neighbors_cold(hidden, [example.operator for example in features])

    def _neighbors_cold(self, hidden: Tensor, operators: Sequence[Operator]) -> Flags:
        """Return whether the nearest neighbors among operators of the same kind are all clearly cold."""
        flags = np.zeros(len(hidden), bool)
        if self._embeddings is None or len(self._embeddings) < self.neighbors:
            return flags
        similarity = nn.functional.normalize(hidden, dim=1) @ self._embeddings.T
        is_same = _equal_pairs([operator.key for operator in operators], [operator.key for operator in self._operators])
        similarity += SAME_OPERATOR_BONUS * is_same
        similarity[
            ~_equal_pairs([operator.kind for operator in operators], [operator.kind for operator in self._operators])
        ] = EXCLUDED
        nearest = similarity.topk(self.neighbors, dim=1)
        for at in range(len(hidden)):
            if float(nearest.values[at, -1]) > EXCLUDED:
                flags[at] = bool(self._clearly_cold[nearest.indices[at].numpy()].all())
        return flags

    def _encode(self, features: Sequence[CandidateFeatures]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the decisions, categories and sizes as tensors for the network."""
        decisions = torch.zeros(len(features), MAX_DECISIONS, dtype=torch.long)
        categories = torch.zeros(len(features), len(CATEGORICAL) + 1, dtype=torch.long)
        sizes = torch.zeros(len(features), MAX_SIZES + 1)
        for at, example in enumerate(features):
            for index, value in enumerate(example.decisions[:MAX_DECISIONS]):
                decisions[at, index] = _bucket(value)
            for which, name in enumerate(CATEGORICAL):
                categories[at, which] = self._vocabularies[which].get(_category(example, name), 0)
            categories[at, -1] = min(example.sketch + 1, MAX_SKETCHES)
            dimensions = [int(size) for shape in example.operator.shapes for size in shape.split("x")]
            for index, size in enumerate(dimensions[:MAX_SIZES]):
                sizes[at, index] = math.log2(1 + size) / 10
            sizes[at, MAX_SIZES] = math.log10(1 + example.operator.flops) / 10
        return decisions + torch.arange(MAX_DECISIONS) * DECISION_BUCKETS, categories, sizes


def _label(operator: Operator, candidates: Sequence[ScheduleCandidate]) -> list[LabeledExample]:
    latencies = [candidate.latency_s for candidate in candidates if candidate.latency_s is not None]
    middle = median(latencies or [1.0])
    usual = (fit_latencies(latencies) or [0.0])[-1] or 0.0
    examples = []
    for candidate in candidates:
        features, latency = _features(operator, candidate), candidate.latency_s
        if latency is None:  # a failure counts as cold: it is not worth trying again
            examples.append(LabeledExample(candidate.key, features, math.nan, True, True))
        else:
            relative = math.log(latency / middle)
            examples.append(
                LabeledExample(candidate.key, features, relative, latency > usual, latency > COLD_MARGIN * usual)
            )
    return examples


def _fit_network(
    network: LatencyNetwork, inputs: tuple[Tensor, Tensor, Tensor], latency: Tensor, train: Tensor, validation: Tensor,
    is_affordable: Callable[[], bool],
) -> None:  # fmt: skip
    """Train with Adam until the learning rate has decayed, for at most EPOCHS epochs, while that is affordable."""
    train, validation = (part[~latency[part].isnan()] for part in (train, validation))
    with torch.no_grad():
        network.output.bias.fill_(float(latency[train].mean()))
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.3, patience=PATIENCE, min_lr=MIN_LEARNING_RATE
    )
    batch_size = min(BATCH_SIZE, max(16, len(train) // MIN_UPDATES_PER_EPOCH))
    passes = max(
        1, MIN_UPDATES_PER_EPOCH * batch_size // max(1, len(train))
    )  # so that a small epoch has enough updates
    generator = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        order = torch.cat([train[torch.randperm(len(train), generator=generator)] for _ in range(passes)])
        for batch in order.split(batch_size):  # type: ignore[no-untyped-call]
            _, predicted = network(*(tensor[batch] for tensor in inputs))
            loss = nn.functional.mse_loss(predicted, latency[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            _, predicted = network(*(tensor[validation] for tensor in inputs))
            loss = nn.functional.mse_loss(predicted, latency[validation])
            scheduler.step(float(loss) if len(validation) else 0.0)
        if optimizer.param_groups[0]["lr"] <= MIN_LEARNING_RATE or not is_affordable():
            break


def _equal_pairs(rows: Sequence[str], columns: Sequence[str]) -> Tensor:
    """Return a matrix of whether each row's text equals each column's."""
    return torch.as_tensor(np.array(rows)[:, None] == np.array(columns)[None, :])


def _features(operator: Operator, candidate: ScheduleCandidate) -> CandidateFeatures:
    device = f"{candidate.target} x{candidate.threads}"
    return CandidateFeatures(operator, device, candidate.machine, candidate.sketch, candidate.decisions)


def _category(features: CandidateFeatures, name: str) -> str:
    return features.operator.kind if name == "kind" else str(getattr(features, name))


def _initial_embedding() -> Tensor:
    """Return embeddings that encode a decision's size and divisibility, which a few hundred examples cannot teach."""
    embedding = torch.zeros(DECISION_BUCKETS, EMBEDDING_SIZE)
    for value in range(-2, EXACT_VALUES + 1):
        row = embedding[_bucket(value)]
        row[0] = math.log2(1 + max(0, value)) / 4
        row[1] = float(value < 0)
        row[2] = float(value == 0)
        row[3] = float(value == 1)
        for at, width in enumerate((2, 3, 4, 8, 16, 32), 4):
            row[at] = float(value > 0 and value % width == 0)
    for bucket in range(_bucket(EXACT_VALUES + 1), DECISION_BUCKETS):
        embedding[bucket, 0] = math.log2((EXACT_VALUES + 1) * 2 ** ((bucket - 100) / 4)) / 4
        embedding[bucket, 4:] = 1.0
    return embedding


def _bucket(value: int) -> int:
    """Return the bucket of a decision: negative compute locations, exact small values, logarithmic large ones.

    Bucket 0 is padding.
    """
    if value < 0:
        return 1 if value == -1 else 2
    if value <= EXACT_VALUES:
        return 3 + value
    return min(DECISION_BUCKETS - 1, 100 + round(4 * math.log2(value / EXACT_VALUES)))
