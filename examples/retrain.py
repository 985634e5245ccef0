"""Retrain a digits classifier on images in fog, within 800 MB and ten seconds.

python examples/retrain.py
"""

import onefold
from onefold.baselines.shifted_datasets import corrupted_digits
from onefold.vocabulary.workload_reference import load


def main() -> None:
    best = onefold.train("digits", epochs=10, name="clean-digits")
    network = best.model()
    fog = corrupted_digits("fog", severity=4)

    options = onefold.RetrainingOptions(config=best.config)
    result = onefold.retrain(network, fog, memory="800MB", window="10s", workload=load("digits"), options=options)

    summary = result.summary
    print(f"accuracy in fog: {summary.before:.3f} before, {summary.after:.3f} after, in {summary.elapsed_s:.1f} s")
    print(f"memory: {(summary.peak_bytes or 0) / 1e6:.0f} MB peak; plan: {summary.chosen}")


if __name__ == "__main__":
    main()
