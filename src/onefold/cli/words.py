"""Numbers as a person reads and types them."""

from __future__ import annotations

from collections.abc import Mapping

from onefold.vocabulary.records import Value
from onefold.vocabulary.serving import Purpose, Surface


def duration(seconds: float | None) -> str:
    """1h 02m, 3m 20s, 12.3s; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s"


def energy(joules: float | None, source: str) -> str:
    """1.2 kJ (modelled); a dash when nobody can tell."""
    if joules is None or source in ("", "nothing"):
        return "–"
    amount = f"{joules / 1000:.2f} kJ" if joules >= 1000 else f"{joules:.0f} J"
    return f"{amount} ({source})"


def number(value: float) -> str:
    """Four significant digits, whole numbers as they are."""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def counted(count: int, noun: str) -> str:
    """1 trial, 2 trials."""
    return f"{count} {noun}{'s' * (count != 1)}"


def setting(value: Value) -> str:
    """A value of a parameter."""
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def settings(config: Mapping[str, Value]) -> str:
    """lr=0.01 width=16 …"""
    return " ".join(f"{name}={setting(value)}" for name, value in config.items())


def served(surface: Surface) -> str:
    """0.21 ms a sample alone, 10500 samples/s in batches of 32 on 2 threads (emulated)."""
    alone, most = surface.best(Purpose.LATENCY), surface.best(Purpose.THROUGHPUT)
    batches = f"in batches of {most.point.batch_size} on {counted(most.point.threads, 'thread')}"
    return (
        f"{alone.latency_s * 1e3:.3g} ms a sample alone ({alone.source.value}), "
        f"{number(most.throughput_per_s)} samples/s {batches} ({most.source.value})"
    )
