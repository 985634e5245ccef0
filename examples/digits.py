"""A custom workload in one file: a multilayer perceptron for handwritten digits.

python examples/digits.py
onefold tune examples/digits.py --trials 9
"""

from torch import nn

from onefold import Choice, Config, Data, Float, Int, Space, Workload, datasets, tune


class DenseDigits(Workload):
    """Classification of 8x8 pixels into ten digits."""

    space = Space(
        model=dict(
            depth=Int(1, 3, default=1),
            width=Choice(16, 32, 64, 128, default=64),
            dropout=Float(0.0, 0.5, default=0.1),
        ),
        training=dict(
            batch_size=Choice(16, 32, 64, default=32),
            optimizer=Choice("adam", "sgd", default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=1e-3),
            momentum=Float(0.0, 0.95, default=0.9, when={"optimizer": "sgd"}),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = 64
        for _ in range(config.depth):
            layers += [nn.Linear(inputs, config.width), nn.ReLU(), nn.Dropout(config.dropout)]
            inputs = config.width
        return nn.Sequential(*layers, nn.Linear(inputs, 10))

    def data(self) -> Data:
        return datasets.digits()


def main() -> None:
    result = tune(DenseDigits(), trials=12)

    print(f"best configuration  {dict(result.config)}")
    print(f"validation accuracy {result.metrics['accuracy']:.3f}")
    print(f"test accuracy       {result.test['accuracy']:.3f}")
    print(f"network             {result.model()}")
    print(f"report              {result.report}")


if __name__ == "__main__":  # worker processes import this file to load the class
    main()
