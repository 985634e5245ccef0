"""What `import onefold` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import onefold


def test_everything_promised_is_there() -> None:
    assert list(onefold.__all__) == sorted(onefold.__all__)
    for name in onefold.__all__:
        assert getattr(onefold, name) is not None


def test_importing_needs_no_torch_no_database_and_no_sampler() -> None:
    code = "import sys, onefold; print([m for m in ('torch', 'sqlalchemy', 'optuna', 'sklearn') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_command_that_trains_nothing_does_not_wait_for_torch() -> None:
    code = "import sys, onefold.cli.app; print([m for m in ('torch', 'onnx', 'sklearn', 'scipy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
