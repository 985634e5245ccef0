"""Any function of a configuration can be tuned; here it trains a support vector machine.

python examples/plain_function.py
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

from onefold import Choice, Config, Float, Objective, Space, tune

SPACE = Space(
    kernel=Choice("rbf", "poly"),
    C=Float(1e-2, 1e3, log=True),
    gamma=Float(1e-5, 1e-1, log=True),
    degree=Choice(2, 3, 4, when={"kernel": "poly"}),
)


def accuracy(config: Config) -> dict[str, float]:
    """The mean accuracy of three folds. A configuration holds the active parameters only."""
    pixels, labels = load_digits(return_X_y=True)
    machine = SVC(**config)
    return {"accuracy": cross_val_score(machine, pixels[::2], labels[::2], cv=3).mean()}


def main() -> None:
    result = tune(accuracy, SPACE, objective=Objective(maximize="accuracy"), trials=20)

    for trial in sorted(result.trials, key=lambda trial: -trial.metrics["accuracy"])[:5]:
        settings = " ".join(f"{name}={value}" for name, value in trial.config.items())
        print(f"{trial.metrics['accuracy']:.4f}  {settings}")
    print(f"best: {dict(result.config)}")


if __name__ == "__main__":
    main()
