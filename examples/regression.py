"""Regression: predict the progression of diabetes after a year from ten measurements.

python examples/regression.py
onefold tune examples/regression.py --trials 9
"""

import numpy as np
from sklearn.datasets import load_diabetes
from torch import nn

from onefold import Choice, Config, Data, Float, Objective, Space, Workload, tune

TEST = 88  # held-out patients


class Diabetes(Workload):
    """Floating-point targets select mean squared error as the loss and `rmse` as the metric."""

    space = Space(
        model=dict(width=Choice(8, 16, 32, 64), activation=Choice("relu", "tanh")),
        training=dict(
            batch_size=Choice(16, 32, 64),
            lr=Float(1e-4, 1e-1, log=True),
            weight_decay=Float(1e-6, 1e-1, log=True),
        ),
    )
    objective = Objective(minimize="rmse")

    def build(self, config: Config) -> nn.Module:
        activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[config.activation]
        return nn.Sequential(nn.Linear(10, config.width), activation(), nn.Linear(config.width, 1))

    def data(self) -> Data:
        inputs, progress = load_diabetes(return_X_y=True)
        order = np.random.RandomState(0).permutation(len(inputs))
        train, test = order[TEST:], order[:TEST]
        # Scaled by the training split alone, so that nothing leaks from the test split.
        inputs = ((inputs - inputs[train].mean(0)) / inputs[train].std(0)).astype(np.float32)
        target = ((progress - progress[train].mean()) / progress[train].std()).astype(np.float32)
        return Data(train=(inputs[train], target[train]), test=(inputs[test], target[test]))


def main() -> None:
    result = tune(Diabetes(), trials=9, max_epochs=9)

    print(f"best configuration {dict(result.config)}")
    print(f"validation rmse    {result.metrics['rmse']:.3f} standard deviations")
    print(f"test rmse          {result.test['rmse']:.3f} standard deviations")


if __name__ == "__main__":
    main()
