"""The first phase of a retraining: check the data, profile the network, evaluate the given model."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from onefold.retraining.allocator import MAPPING, release_free_memory, use_mode
from onefold.retraining.batch_norm import batch_norms
from onefold.retraining.calibration import CALIBRATION_EVALUATIONS, SHARES, Calibration
from onefold.retraining.class_growth import (
    GROWTH_REPLAYED_SHARE,
    class_log_priors,
    grow_for_new_classes,
    initialize_new_classes,
)
from onefold.retraining.contention import Contention
from onefold.retraining.data_compatibility import check_compatible
from onefold.retraining.evaluation import MIN_SAMPLES, Evaluation, Evaluator
from onefold.retraining.feasible_plans import FREEZE_RATES
from onefold.retraining.given_network import GivenNetwork
from onefold.retraining.identity import network_signature
from onefold.retraining.job import RetrainingJob
from onefold.retraining.label_free import adapt_without_labels
from onefold.retraining.memory_monitor import MemoryMonitor
from onefold.retraining.memory_trace import LossFunction
from onefold.retraining.messages import insufficient_memory_message, short_window_message
from onefold.retraining.network_profile import NetworkProfile, profile_network
from onefold.retraining.plan_runner import PlanOutOfMemory, PlanRunner
from onefold.retraining.planning_context import PlanningContext, remembered_gains
from onefold.retraining.samples import REPLAYED_SHARE, BatchOrder
from onefold.retraining.save_cost import save_bytes, weight_bytes
from onefold.retraining.stages import split_into_stages
from onefold.retraining.time_reserve import TimeReserve, python_slowdown, save_s, time_write
from onefold.retraining.time_window import TimeWindow
from onefold.retraining.training_step import Stepper
from onefold.retraining.weight_snapshot import WeightSnapshot
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.retraining import PhaseStarted

PROFILED_SAMPLES = 4
EVALUATIONS = 3  # of all validation samples in a retraining: for the given, the last and the best model
INITIALIZATION_SHARE = 0.02  # of the window, at most, to initialize new classes
MIN_INITIAL_SAMPLES = 64
PROFILING_FORWARDS = 15  # minimum duration of profiling in forward passes of two samples


@dataclass(frozen=True)
class PreparedNetwork:
    """A profiled network, ready to be trained within the limits."""

    job: RetrainingJob
    window: TimeWindow
    memory: MemoryMonitor
    given: GivenNetwork
    best: WeightSnapshot  # of the best model so far
    reserve: TimeReserve
    profile: NetworkProfile
    runner: PlanRunner
    has_batch_norm: bool
    profiling_bytes: int  # of the process while the network was profiled
    planning_bytes: int  # that profiling added to it

    def context(self) -> PlanningContext:
        """Return the inputs of a search for plans, as of now."""
        return PlanningContext(
            self.profile,
            self.runner.held_bytes,
            self.memory.limit(),
            max(self.window.left_s, 0.0),
            len(self.job.data.train),
            self.has_batch_norm,
            self.job.optimizer,
            remembered_gains(self.job.lessons, self.job.priors),
            self.max_freeze_rate,
            self.reserve.contention.factor,
        )

    @cached_property
    def max_freeze_rate(self) -> float:
        """The largest share of frozen layers that leaves something to train."""
        staged, trainable = self.profile.staged, self.given.trainable
        if trainable is None:
            return 1.0
        chosen = set(trainable)
        last = max(index for index, stage in enumerate(staged.stages) if chosen & {*stage.weights})
        return max(rate for rate in FREEZE_RATES if staged.frozen_stages(rate) <= last)

    @property
    def other_bytes(self) -> int:
        """The memory of the process that everything but training needs at least: profiling and saving the model."""
        return max(self.profiling_bytes, self.runner.held_bytes + self.job.save_bytes)

    def evaluation_bytes(self) -> int:
        """Return what an evaluation may add to the process."""
        return round(self.context().usable_bytes) - self.runner.held_bytes


@dataclass(frozen=True)
class Baseline:
    """The evaluation of the given model, which a new one must surpass."""

    evaluator: Evaluator
    all: Evaluation  # of all validation data
    start: Evaluation  # of the same data, by the network that is trained: with new classes, if there are any
    evaluation_s: float  # that evaluating all took
    calibration: Calibration | None = None  # if there are new classes, and a reference set


def prepare(job: RetrainingJob, window: TimeWindow, memory: MemoryMonitor, given: GivenNetwork) -> PreparedNetwork:
    """Check the data and profile the network.

    Raises:
        InputError: The window is too short.
        DatasetError: The network cannot be trained on the data.
    """
    torch.manual_seed(job.seed)
    if job.is_on_cpu:
        use_mode(MAPPING)
    memory.open()
    contention = Contention(job.processor_times)
    forward_s = _check_data(job, window, given)
    if job.strategy.is_adaptive and _suits_channels_last(job.network):
        given.use_channels_last()
        job.data = job.data.with_channels_last()
    log_priors = None
    if given.head is not None:
        log_priors = class_log_priors(job, given.head.classes)
        job.signature = network_signature(job.network)
        if job.save_s:  # its ONNX file has the given head, so it is exported again
            job.save_bytes = save_bytes(job.network, is_served=job.is_served)
            job.save_s = save_s(job.network, is_served=job.is_served)
    job.on_event(PhaseStarted("profiling the network"))
    snapshot, best = given.capture(), WeightSnapshot(job.network)
    reserve = _time_reserve(job, snapshot, contention)
    window.reserve_s = reserve.seconds
    evaluation_s = min(MIN_SAMPLES, len(job.data.validation)) * forward_s / 4  # roughly
    _require(PROFILING_FORWARDS * forward_s, EVALUATIONS * evaluation_s, job, window)
    used = memory.used()
    memory.reset_peak()
    batch = job.data.train.few(PROFILED_SAMPLES)
    staged = split_into_stages(job.network, batch[:-1])
    profile = profile_network(staged, batch, _loss_function(job, log_priors), job.lessons, job.clock)
    profiling_bytes = memory.peak() or used
    release_free_memory()
    has_batch_norm = bool(batch_norms(job.network))
    given.require_gradients()
    stepper = Stepper(
        staged, profile.trace, _loss_function(job, log_priors), running_statistics=job.strategy.is_adaptive
    )
    share = REPLAYED_SHARE if given.head is None else GROWTH_REPLAYED_SHARE
    reference = job.data.reference if job.strategy.is_adaptive else None
    if reference is not None and not job.data.has_labels and len(reference.replayed.few(1)[-1].shape) > 1:
        reference = None  # targets per position cannot be mixed with none
    order = BatchOrder(job.data.train, job.seed, None if reference is None else reference.replayed, share)
    runner = PlanRunner(
        stepper,
        profile,
        memory,
        window,
        order,
        memory.used(),
        job.machine,
        job.signature,
        job.strategy.is_adaptive,
        job.is_on_cpu,
    )
    return PreparedNetwork(
        job, window, memory, given, best, reserve, profile, runner, has_batch_norm,
        profiling_bytes, max(0, profiling_bytes - used),
    )  # fmt: skip


def open_evaluator(prepared: PreparedNetwork) -> Evaluator:
    """Return the evaluator, and reserve the time of its evaluations.

    Raises:
        InputError: The memory limit or the window is too small.
    """
    job, window, reserve = prepared.job, prepared.window, prepared.reserve
    evaluator = Evaluator(job, prepared.profile, prepared.evaluation_bytes(), reserve)
    evaluation_s = evaluator.samples * evaluator.sample_s
    _require(evaluation_s / 2, EVALUATIONS * evaluation_s, job, window)  # which are rough estimates
    if prepared.given.head is not None:
        reserve.evaluations += CALIBRATION_EVALUATIONS
    elif job.strategy.is_adaptive:
        if evaluator.samples <= MIN_SAMPLES:  # then all of them are evaluated after each micro-window
            reserve.evaluations -= 1
        if job.data.reference is not None:
            reserve.evaluations += 1 if job.data.has_labels else len(SHARES) - 1
    try:
        evaluator.try_out()
    except PlanOutOfMemory:
        raise _no_memory_to_evaluate(prepared) from None
    reserve.is_given_evaluated = False
    window.reserve_s = reserve.seconds
    return evaluator


def evaluate_given(prepared: PreparedNetwork, evaluator: Evaluator) -> Baseline:
    """Evaluate the given model, which the network is.

    Raises:
        InputError: The memory limit is too low.
    """
    job, window = prepared.job, prepared.window
    job.on_event(PhaseStarted("evaluating the given model"))
    started = window.elapsed_s
    head = prepared.given.head
    try:
        with nullcontext() if head is None else head.masked():
            before = evaluator.evaluate()
    except PlanOutOfMemory:
        raise _no_memory_to_evaluate(prepared) from None
    start, calibration = before, None
    if head is not None:
        samples = max(MIN_INITIAL_SAMPLES, evaluator.samples_within(INITIALIZATION_SHARE * window.length_s))
        initialize_new_classes(job, head, samples, evaluator.batch_size)
        for snapshot in (snapshot for snapshot in (prepared.best, prepared.given.snapshot) if snapshot is not None):
            snapshot.capture()  # the new rows, which are not given back
        if job.strategy.is_adaptive and job.data.reference is not None:
            calibration = Calibration(job, head, evaluator)
        start = evaluator.evaluate()
    prepared.reserve.is_given_evaluated = True
    window.reserve_s = prepared.reserve.seconds
    return Baseline(evaluator, before, start, window.elapsed_s - started, calibration)


def _no_memory_to_evaluate(prepared: PreparedNetwork) -> InputError:
    limits = prepared.job.current_limits
    return InputError(insufficient_memory_message(prepared.context(), limits, prepared.other_bytes))


def _check_data(job: RetrainingJob, window: TimeWindow, given: GivenNetwork) -> float:
    """Check that the network can be trained on the data, with a head that has all of its classes.

    Returns the seconds of a forward pass of two samples.
    """
    job.network.eval()
    floating = (weight.dtype for weight in job.network.parameters() if weight.is_floating_point())
    job.data = job.data.with_dtype(next(floating, torch.float32))
    if not job.data.has_labels:
        adapt_without_labels(job, given)
    given.head = grow_for_new_classes(job) if job.new_classes else None
    started = window.elapsed_s
    check_compatible(job.network, job.data, job.workload, job.config)
    return (window.elapsed_s - started) / 2  # of two samples, twice


def _require(seconds: float, later_s: float, job: RetrainingJob, window: TimeWindow) -> None:
    """Raise InputError if the window is too short for what takes this long before training can begin.

    The window that it names has time for what takes `later_s` too.
    """
    if window.left_s < seconds and not window.is_stopped:
        needed_s = window.elapsed_s + seconds + later_s + window.reserve_s
        raise InputError(short_window_message(0.0, needed_s, job.current_limits))


def _time_reserve(job: RetrainingJob, snapshot: WeightSnapshot, contention: Contention) -> TimeReserve:
    """Measure what determines how long the end of the retraining takes."""
    _, started = job.processor_times()
    release_free_memory()
    collection_s = job.processor_times()[1] - started  # long in a process with many objects
    slowdown = python_slowdown(lambda: job.processor_times()[1])
    writes = job.written_bytes / max(1, weight_bytes(job.network))
    return TimeReserve(
        collection_s=collection_s,
        write_s=writes * time_write(snapshot, job.clock) if writes else 0.0,
        save_s=(job.save_s + job.lessons_s) * slowdown,
        exit_s=job.exit_s * slowdown,
        contention=contention,
    )


def _suits_channels_last(network: nn.Module) -> bool:
    """Return whether convolutions are faster in the channels-last memory format, and the network may be trained so.

    The backward pass of torch's GroupNorm crashes in this format where its inputs need no gradient, as after frozen
    layers.
    """
    kinds = {type(module) for module in network.modules()}
    return any(issubclass(kind, nn.Conv2d) for kind in kinds) and not any(
        issubclass(kind, nn.GroupNorm) for kind in kinds
    )


def _loss_function(job: RetrainingJob, log_priors: Tensor | None) -> LossFunction:
    """Return the loss of the workload, with the configuration of the model; `log_priors` are added to the logits."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if log_priors is not None:
            outputs = outputs + log_priors.to(outputs).reshape(-1, *[1] * (outputs.dim() - 2))
        value: Tensor = job.workload.loss(outputs, targets, job.config)
        return value

    return loss
