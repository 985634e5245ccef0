"""The phases of a retraining: prepare, plan, train in micro-windows, choose the model."""

from __future__ import annotations

from onefold.retraining.given_network import GivenNetwork
from onefold.retraining.job import RetrainingJob
from onefold.retraining.memory_monitor import MemoryMonitor, monitor_for
from onefold.retraining.micro_windows import MicroWindowTraining
from onefold.retraining.outcome import choose_model, summarize
from onefold.retraining.plan_runner import PlanRunner
from onefold.retraining.preparation import open_evaluator, prepare
from onefold.retraining.retraining_record import RetrainingRecord
from onefold.retraining.time_window import TimeWindow
from onefold.vocabulary.retraining import MemoryLesson, MicroWindow, PlanEstimate, PlansFound, RetrainingSummary


class RetrainingController:
    """One retraining. After `run` the network has the weights that are returned."""

    def __init__(self, job: RetrainingJob) -> None:
        self.job = job
        self.window = TimeWindow(job.limits.window_s, job.started_at, job.clock, job.control)
        self.memory: MemoryMonitor = monitor_for(job.data.train.device, job.limits.memory_bytes, job.control)
        self.record = RetrainingRecord(self.window, job.on_event)
        self.given = GivenNetwork(job.network)
        self._runner: PlanRunner | None = None

    @property
    def is_on_cpu(self) -> bool:
        """Whether the memory of the process counts, rather than that of a GPU."""
        return self.job.is_on_cpu

    @property
    def runner(self) -> PlanRunner:
        """The runner of plans, once the network is profiled."""
        if self._runner is None:
            raise RuntimeError("there is no runner before the network is profiled; call run() first")
        return self._runner

    @property
    def windows(self) -> list[MicroWindow]:
        """Return the micro-windows so far."""
        return self.record.windows

    @property
    def lessons(self) -> list[MemoryLesson]:
        """Return the memory measurements of this retraining."""
        return self.runner.lessons

    def plan_only(self) -> tuple[PlanEstimate, ...]:
        """Return the feasible plans without training. Raises as `run` does."""
        try:
            return self._training().plan()
        finally:
            self.given.restore()
            self._release()

    def run(self) -> RetrainingSummary:
        """Retrain the network. After any exception the network is as given.

        Raises:
            InputError: No plan can keep the limits.
            DatasetError: The network cannot be trained on the data.
        """
        try:
            training = self._training()
            prepared = training.prepared
            plans = training.plan()
            planning_s = self.window.elapsed_s - training.evaluation_s
            self.job.on_event(PlansFound(plans))
            training.run()
            baseline = training.baseline
            outcome = choose_model(prepared, baseline, self.record)
            self._release()
            return summarize(prepared, baseline, self.record, outcome, planning_s)
        except BaseException:
            self.given.restore()
            self._release()
            raise

    def _training(self) -> MicroWindowTraining:
        """Profile the network."""
        prepared = prepare(self.job, self.window, self.memory, self.given)
        self._runner = prepared.runner
        return MicroWindowTraining(prepared, open_evaluator(prepared), self.record)

    def _release(self) -> None:
        """Put the network into evaluation mode, without gradients and in its given memory format."""
        self.memory.close()
        if self._runner is not None:
            self._runner.stepper.release()
            self._runner.stepper.reset_optimizer()
        self.given.release()
        self.job.network.eval()
