"""The process that serves a model to be timed: `python -m onefold.runtimes.timing_worker FD`.

A message has an opener, inputs and a number of repeats; the reply is what `time_served` returns, or an error.
"""

from __future__ import annotations

from onefold.processes import Channel, connect_to_parent
from onefold.runtimes.call_timing import time_served
from onefold.vocabulary.error_text import message_of, type_name


def serve(channel: Channel) -> None:
    """Answer messages until the parent closes the channel."""
    while True:
        try:
            message = channel.receive()
        except (EOFError, OSError):
            return
        try:
            channel.send((time_served(*message), ""))
        except Exception as error:  # noqa: BLE001 - reported to the parent
            channel.send((None, message_of(error).strip() or type_name(error)))


def main() -> None:
    """Serve the parent process."""
    serve(connect_to_parent())


if __name__ == "__main__":
    main()
