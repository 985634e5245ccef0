import pytest

# The suite is no test module itself; this gives its assertions the detail that tests have.
pytest.register_assert_rewrite("meter_contract")
