"""The executors, each through the one contract suite."""

import pytest

pytest.register_assert_rewrite("tests.executors.contract")
