import pytest

# Contract suites live in the package; this gives their assertions the detail that tests have.
pytest.register_assert_rewrite("onefold.testing.stores", "onefold.testing.kernel_stores")
