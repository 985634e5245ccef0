"""The same from a shell. The only package that prints."""

from onefold.cli.entry import main

__all__ = ["main"]
