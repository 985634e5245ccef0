"""Training with tuned knobs against torch's defaults: time, accuracy and the cost of tuning.

Four networks with the default configurations of their workloads train in separate processes, one after the other: with
torch's defaults (one thread per core), with knobs that keep the precision, with knobs that may reduce it, and with the
first two under contention by a process that keeps one core busy, in random order for each of five seeds. The time and
the energy of all epochs are compared, including validation. Then similar jobs get what the first ones learned and must
reuse it, three times, testing only threads and cores; eight labeled pairs of jobs test whether similar jobs are
recognized; and contention starts in the middle of a training: it is answered after the last window that is slower than
those of a training that began under contention, as the median of five seeds.

With `--state FOLDER`, an interrupted run continues with its first unfinished training.
"""

from __future__ import annotations

from pathlib import Path

from claims import argument_parser, conclude
from claims.journal import open_journal
from knob_training import bars
from knob_training.sections import Measurements, variant_rows

METHOD_VERSION = 2  # counted up when figures are no longer comparable with earlier ones
SEEDS, QUICK_SEEDS = (0, 1, 2, 3, 4), (0,)
EPOCHS, QUICK_EPOCHS = 10, 4
QUICK_SCALE = 0.4  # of the data


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--state", type=Path, help="folder of the finished trainings; by default a new one")
    options = parser.parse_args()
    seeds, epochs, scale = (QUICK_SEEDS, QUICK_EPOCHS, QUICK_SCALE) if options.quick else (SEEDS, EPOCHS, 1.0)
    with open_journal(options.state, quick=options.quick) as journal:
        measurements = Measurements(journal, epochs, scale)
        runs = measurements.compare_variants(seeds)
        last = {run.workload: run.result.learned for run in runs if run.variant == "knobs"}
        recalled = measurements.recall([memory for learned in last.values() for memory in learned])
        pairs = measurements.classify_pairs()
        recovered = measurements.start_contention(seeds)
    rows = variant_rows(runs)
    claims = [
        *bars.variant_claims(rows), *bars.recall_claims(recalled, pairs), *bars.recovery_claims(recovered)
    ]  # fmt: skip
    conclude("knobs", claims, [*rows, *recalled, *pairs, *recovered], quick=options.quick)


if __name__ == "__main__":
    main()
