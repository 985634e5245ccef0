"""Where calls run. Knows no tuning."""

from onefold.engine.answer import answer
from onefold.engine.engine import Call, Engine, Event, Failed, Finished, Reported, Setup, Tick
from onefold.engine.inline import InlineEngine
from onefold.engine.processes import ProcessEngine

__all__ = [
    "Call", "Engine", "Event", "Failed", "Finished", "InlineEngine", "ProcessEngine", "Reported",
    "Setup", "Tick", "answer",
]  # fmt: skip
