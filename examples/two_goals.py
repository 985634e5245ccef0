"""Two goals at once: high accuracy with few parameters. The answer is a front, not a point.

python examples/two_goals.py
"""

from onefold import Objective, at_least, tune


def main() -> None:
    result = tune(
        "digits",
        objective=Objective(maximize="accuracy", minimize="parameters", require={"accuracy": at_least(0.5)}),
        trials=18,
        rungs="top-k",  # one epoch each, then the full budget for the best six: enough for a front
        top_k=6,
    )

    stopped = sum(trial.level < result.best.level for trial in result.trials)
    print(f"{len(result.trials)} trials, of which {stopped} were stopped early")
    print("no other trial is both more accurate and smaller than one of these:")
    for trial in sorted(result.front, key=lambda trial: trial.metrics["parameters"]):
        accuracy, parameters = trial.metrics["accuracy"], trial.metrics["parameters"]
        shape = " ".join(f"{name}={trial.config[name]}" for name in ("depth", "filters", "kernel", "hidden"))
        print(f"{parameters:8.0f} parameters  accuracy {accuracy:.3f}  {shape}")


if __name__ == "__main__":
    main()
