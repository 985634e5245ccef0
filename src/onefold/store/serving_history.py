"""The store protocol of serving: the measured surfaces of architectures on devices."""

from __future__ import annotations

from typing import Protocol

from onefold.vocabulary.serving import Surface


class ServingHistory(Protocol):
    """Latency surfaces of architectures on devices, shared by all studies."""

    def save_surface(self, key: str, surface: Surface) -> None:
        """Add or replace the surface of an architecture on a device."""

    def surface(self, key: str) -> Surface | None:
        """Return the surface with that key, or None."""

    def surfaces(self) -> dict[str, Surface]:
        """Return all surfaces that `surface` finds, by key."""

    def archive_surface(self, key: str) -> None:
        """Take a surface out of the history, if there is one, so that it is measured anew; its trials keep it."""

    def link_surface(self, study: str, trial: int, device: str, key: str, *, recalled: bool) -> None:
        """Record which surface a trial has on a device, and whether it was measured earlier (`recalled`)."""

    def trial_surfaces(self, study: str) -> dict[tuple[int, str], Surface]:
        """Return the surfaces of a study's trials, by trial and device."""
