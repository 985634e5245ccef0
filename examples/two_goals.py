"""Two objectives: maximize accuracy and minimize parameters. The result is a Pareto front.

python examples/two_goals.py
"""

from onefold import Objective, SearchOptions, at_least, tune


def main() -> None:
    result = tune(
        "digits",
        objective=Objective(maximize="accuracy", minimize="parameters", require={"accuracy": at_least(0.5)}),
        trials=9,
        search=SearchOptions(rungs="top-k", top_k=3),  # one epoch each, then the full budget for the best three
        max_epochs=9,
    )

    stopped = sum(trial.level < result.best.level for trial in result.trials)
    print(f"{len(result.trials)} trials, of which {stopped} were stopped early")
    print("Pareto front:")
    for trial in sorted(result.front, key=lambda trial: trial.metrics["parameters"]):
        accuracy, parameters = trial.metrics["accuracy"], trial.metrics["parameters"]
        shape = " ".join(f"{name}={trial.config[name]}" for name in ("depth", "filters", "kernel", "hidden"))
        print(f"{parameters:8.0f} parameters  accuracy {accuracy:.3f}  {shape}")


if __name__ == "__main__":
    main()
