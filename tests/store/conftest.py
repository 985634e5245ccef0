import pytest

# The suites are no test modules themselves; this gives their assertions the detail that tests have.
pytest.register_assert_rewrite("store_contract", "kernel_store_contract")
