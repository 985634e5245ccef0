"""Tune any function of a configuration, here one that trains a support vector machine.

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
    """Return the mean accuracy of three folds. `config` holds the active parameters only."""
    pixels, labels = load_digits(return_X_y=True)
    classifier = SVC(**config)
    return {"accuracy": cross_val_score(classifier, pixels[::2], labels[::2], cv=3).mean()}


def main() -> None:
    result = tune(accuracy, SPACE, objective=Objective(maximize="accuracy"), trials=12)

    for trial in sorted(result.trials, key=lambda trial: -trial.metrics["accuracy"])[:5]:
        settings = " ".join(f"{name}={value}" for name, value in trial.config.items())
        print(f"{trial.metrics['accuracy']:.4f}  {settings}")
    print(f"best: {dict(result.config)}")


if __name__ == "__main__":
    main()
