"""A bit that flips in a checkpoint is noticed before the weights are used."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path

import pytest
import torch

from onefold import Config, Objective
from onefold.testing.toy import Spirals
from onefold.training.assignment import Assignment
from onefold.training.checkpoint import load_weights
from onefold.training.trial_files import best_weights_file, checkpoint_file
from onefold.training.workload_trainer import WorkloadTrainer
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.records import Epoch, Grant

CONFIG = Config(width=8, layers=1, batch_size=32, optimizer="adam", lr=0.01)


def flip_a_weight(file: Path) -> None:
    """Flip a bit in the first tensor of a file, which torch then reads without a complaint."""
    with zipfile.ZipFile(file) as archive:
        record = next(item for item in archive.infolist() if "/data/" in item.filename)
        tensor = archive.read(record)
    content = bytearray(file.read_bytes())
    content[content.index(tensor) + 1] ^= 0b100
    file.write_bytes(content)
    torch.load(file, weights_only=True)


def epochs_of(folder: Path, epochs: int) -> list[Epoch]:
    grant = Grant(level=1, epochs=epochs, data=1.0)
    work = Assignment(0, 0, CONFIG, grant, seed=1, threads=1, max_epochs=9, objective=Objective(minimize="loss"))
    trainer = WorkloadTrainer(Spirals(), folder)
    return [event for event in trainer.train([work], tick=lambda: None) if isinstance(event, Epoch)]


def test_a_damaged_checkpoint_starts_the_trial_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = epochs_of(tmp_path / "whole", 3)
    epochs_of(tmp_path / "cut", 2)
    flip_a_weight(checkpoint_file(tmp_path / "cut", 0))
    with caplog.at_level(logging.WARNING):
        again = epochs_of(tmp_path / "cut", 3)
    assert "is unreadable, so the trial starts again: the checksum of" in caplog.text
    assert [epoch.metrics["loss"] for epoch in again] == [epoch.metrics["loss"] for epoch in whole]


def test_damaged_weights_are_not_handed_over(tmp_path: Path) -> None:
    epochs_of(tmp_path, 1)
    weights = best_weights_file(tmp_path, 0, 0)
    assert weights is not None
    assert load_weights(weights)
    flip_a_weight(weights)
    with pytest.raises(StoreError, match=r"weights .* are damaged \(the checksum of .* does not match\); restore"):
        load_weights(weights)
