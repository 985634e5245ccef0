"""The claims about kernel tuning and their bars, which were fixed before the measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from claims import Claim

from kernel_comparison.figures import TOLERANCE, Row

MAX_WARM, MAX_STOCK, MAX_RECALLED, MAX_TOGETHER = 0.6, 0.1, 0.4, 0.75  # times the cost of the comparison
MIN_COLD_SAVED, MIN_PRECISION, MIN_OVER_TORCH = 0.40, 0.8, 1.5
DISTINCT = 0.05  # runtimes closer than this are equally fast
NEVER = float("inf")


def metaschedule_claims(rows: Sequence[Row], stock: Sequence[Row], batch: int) -> list[Claim]:
    """Return the claims against MetaSchedule, each for its better setting, which is the one with the higher ratio.

    Args:
        rows: One for each network and batch size of MetaSchedule.
        stock: Time per candidate of stock MetaSchedule, one for each batch size; empty if not measured.
        batch: The batch size with which MetaSchedule measures as many candidates as Onefold.
    """
    seconds = _per_network(rows, lambda row: (row["Onefold s"] or NEVER) / row["MetaSchedule s"])
    joules = _per_network(rows, lambda row: (row["Onefold J"] or NEVER) / row["MetaSchedule J"])
    claims = [
        Claim("time to MetaSchedule's final latency, with our builder and runner", f"<= {MAX_WARM:g}x",
              _with_worst(seconds), max(seconds) <= MAX_WARM),
        Claim("… energy", f"<= {MAX_WARM:g}x", _with_worst(joules), max(joules) <= MAX_WARM),
    ]  # fmt: skip
    latencies = [row["Onefold ms"] / row["MetaSchedule ms"] for row in rows if row["batch"] == batch]
    if latencies:
        claims.append(
            Claim("latency at equal candidates", f"<= {TOLERANCE:g}x", _with_worst(latencies),
                  max(latencies) <= TOLERANCE)
        )  # fmt: skip
    return claims + ([_stock_claim(rows, stock)] if stock else [])


def _stock_claim(rows: Sequence[Row], stock: Sequence[Row]) -> Claim:
    rates = {row["batch"]: row["s per candidate"] for row in stock if row["s per candidate"] is not None}
    charged = [row for row in rows if row["batch"] in rates]
    ratios = _per_network(
        charged,
        lambda row: (row["Onefold s"] or NEVER) / (rates[row["batch"]] * row["MetaSchedule candidates to match"]),
    )
    measured = ", ".join(f"{rate:.1f} s a candidate in batches of {batch}" for batch, rate in rates.items())
    return Claim(
        "… time, against MetaSchedule as it comes (estimated from its seconds a candidate)", f"<= {MAX_STOCK:g}x",
        f"{_listed(ratios)}; it takes {measured}" if ratios else "stock MetaSchedule failed",
        bool(ratios) and max(ratios) <= MAX_STOCK,
    )  # fmt: skip


def filter_claims(rows: Sequence[Row], precision: Row) -> list[Claim]:
    """Return the claims about the cold filter; where it drops nothing, a difference is noise."""
    seconds = 1 - sum(row["filtered cold s"] for row in rows) / sum(row["unfiltered cold s"] for row in rows)
    unfiltered_j = max(1e-9, sum(row["unfiltered cold J"] for row in rows))
    joules = 1 - sum(row["filtered cold J"] for row in rows) / unfiltered_j
    dropped = sum(row["filtered dropped"] for row in rows)
    return [
        Claim("time spent on cold candidates, with the filter", f"{MIN_COLD_SAVED:.0%} less",
              f"{seconds:.0%} less, {dropped} dropped", dropped > 0 and seconds >= MIN_COLD_SAVED),
        Claim("energy spent on cold candidates, with the filter", f"{MIN_COLD_SAVED:.0%} less",
              f"{joules:.0%} less, {dropped} dropped", dropped > 0 and joules >= MIN_COLD_SAVED),
        Claim("precision of the filter on held-out candidates", f">= {MIN_PRECISION:g}",
              f"{precision['precision']:.2f} ({precision['dropped']:.0%} of {precision['candidates']} dropped)",
              precision["precision"] >= MIN_PRECISION),
    ]  # fmt: skip


def history_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claim about tuning with the history of the other networks."""
    ratios = [(row["with history s"] or NEVER) / row["cold start s"] for row in rows]
    return [
        Claim("time to the same latency with history of the two others", f"<= {MAX_RECALLED:g}x", _with_worst(ratios),
              max(ratios) <= MAX_RECALLED)
    ]  # fmt: skip


def joint_claims(joint: Row) -> list[Claim]:
    """Return the claim about tuning all models under one budget."""
    spent = joint["together J"]
    missed = [name for name, joules in spent.items() if joules is None]
    ratio = NEVER if missed else max(spent.values()) / joint["separate J"]
    return [
        Claim(f"{len(spent)} models under one budget, energy to the same latencies", f"<= {MAX_TOGETHER:g}x",
              f"not reached: {', '.join(missed)}" if missed else f"{ratio:.2f}x", ratio <= MAX_TOGETHER)
    ]  # fmt: skip


def interruption_claims(killed: Row) -> list[Claim]:
    """Return the claim about a command that was killed in the middle."""
    twice, candidates = killed["measured twice"], killed["candidates"]
    return [
        Claim("kill -9 in the middle: measured twice", "0", f"{twice} of {candidates}",
              twice == 0 and candidates > killed["before"] > 0)
    ]  # fmt: skip


def runtime_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about the latency of the tuned models."""
    over_torch = [row["torch"] / row["tuned"] for row in rows]
    to_onnxruntime = [row["tuned"] / row["onnxruntime"] for row in rows]
    right = [row for row in rows if _is_recommendation_right(row)]
    return [
        Claim("tuned kernels against torch inference", f">= {MIN_OVER_TORCH:g}x faster on all",
              f"{_listed(over_torch)} (worst {min(over_torch):.2f}x)", min(over_torch) >= MIN_OVER_TORCH),
        Claim("tuned kernels against onnxruntime", "at or below its latency on one", _listed(to_onnxruntime),
              min(to_onnxruntime) <= 1.0),
        Claim("the recommended runtime is the fastest", f"always ({DISTINCT * 100:g} % apart or more)",
              f"{len(right)} of {len(rows)}", len(right) == len(rows)),
    ]  # fmt: skip


def _is_recommendation_right(row: Row) -> bool:
    ratio = row["tuned"] / min(row["onnxruntime"], row["sleeping"])
    return bool(abs(ratio - 1) <= DISTINCT or (row["recommended"] == "tvm") == (ratio <= 1))


def _per_network(rows: Sequence[Row], ratio: Callable[[Row], float]) -> list[float]:
    """Return the highest ratio for each network."""
    names = dict.fromkeys(row["network"] for row in rows)
    return [max(ratio(row) for row in rows if row["network"] == name) for name in names]


def _with_worst(ratios: Sequence[float]) -> str:
    return f"{_listed(ratios)} (worst {max(ratios):.2f}x)"


def _listed(ratios: Sequence[float]) -> str:
    return ", ".join(f"{ratio:.2f}x" for ratio in ratios)
