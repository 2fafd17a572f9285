"""What runs only when it is asked for: tests that take minutes, and further cases of a kind."""

from __future__ import annotations

import os
from typing import Any

import pytest

THOROUGH = bool(os.environ.get("IVY_TEST_THOROUGH"))
"""Whether the tests marked ``thorough`` run too."""


def further(*case: Any) -> Any:
    """A case of a parametrized test that holds nothing which the others do not hold already."""
    return pytest.param(*case, marks=pytest.mark.thorough)
