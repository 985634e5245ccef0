"""A trained network meets pictures in fog, and learns from some of them within 800 MB and ten seconds.

python examples/retrain.py
"""

import onefold
from onefold.baselines.shifted_datasets import corrupted_digits
from onefold.vocabulary.workload_reference import load


def main() -> None:
    best = onefold.train("digits", epochs=10, name="before-the-fog")
    network = best.model()
    fog = corrupted_digits("fog", severity=4)

    better = onefold.retrain(network, fog, memory="800MB", window="10s", workload=load("digits"), config=best.config)

    summary = better.summary
    print(f"accuracy in fog: {summary.before:.3f} as it was, {summary.after:.3f} now, in {summary.elapsed_s:.1f} s")
    print(f"memory: {(summary.peak_bytes or 0) / 1e6:.0f} MB at the peak; plan: {summary.chosen}")


if __name__ == "__main__":
    main()
