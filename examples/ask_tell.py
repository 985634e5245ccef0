"""The search alone: ask for a configuration, evaluate it anywhere, tell the result.

python examples/ask_tell.py
"""

import math

from onefold import Budget, Config, Float, Objective, Search, Space


def loss_after(config: Config, epochs: int) -> float:
    """Stand in for training: a loss that decays toward a floor, both set by the configuration."""
    floor = 0.1 + (math.log10(config.lr) + 2) ** 2 / 4 + (config.dropout - 0.2) ** 2
    return floor + math.exp(-30 * config.lr * epochs)


def main() -> None:
    search = Search(
        Space(lr=Float(1e-4, 1.0, log=True), dropout=Float(0.0, 0.5)),
        objective=Objective(minimize="loss"),
        budget=Budget(trials=27, max_epochs=9, kind="epochs"),
        algorithm="tpe",
        rungs="halving",
        seed=1,
    )

    best, best_loss = Config(), math.inf
    while (decision := search.ask()) is not None:
        loss = loss_after(decision.config, decision.grant.epochs)
        search.tell(decision.number, {"loss": loss})
        if decision.rung > 0:
            print(f"trial {decision.trial:2} promoted to {decision.grant.epochs} epochs: loss {loss:.4f}")
        if decision.grant.epochs == 9 and loss < best_loss:
            best, best_loss = decision.config, loss

    print(f"best: loss {best_loss:.4f} with lr={best.lr:.4f} dropout={best.dropout:.3f}")


if __name__ == "__main__":
    main()
