"""Python child processes: start them, exchange messages with them, notice when they die or hang, kill them.

The parent holds a `Worker`; the child's module calls `connect_to_parent()` in its `main`. Standard library only, since
children load this package before anything else.
"""

from onefold.processes.channel import JSON, PICKLE, Channel, Encoding
from onefold.processes.core_leases import CoreLease, lease_cores, lease_free_cores, lease_job_cores, least_used_cores
from onefold.processes.cores import available_cores, pin_to_cores
from onefold.processes.entry import connect_to_parent
from onefold.processes.interrupt_signals import INTERRUPT_SIGNALS, handle_interrupts, restore_handlers
from onefold.processes.lent_cores import begin_run, lent_cores, record_loan
from onefold.processes.running_clock import paused_s, running_s
from onefold.processes.scratch import scratch_folder
from onefold.processes.watch import SUSPENDED, Watch
from onefold.processes.worker import Worker, describe_exit

__all__ = [
    "INTERRUPT_SIGNALS", "JSON", "PICKLE", "SUSPENDED", "Channel", "CoreLease", "Encoding", "Watch", "Worker",
    "available_cores", "begin_run", "connect_to_parent", "describe_exit", "handle_interrupts", "lease_cores",
    "lease_free_cores", "lease_job_cores", "least_used_cores", "lent_cores", "paused_s", "pin_to_cores", "record_loan",
    "restore_handlers", "running_s", "scratch_folder",
]  # fmt: skip
