"""Finds the kernel's driver and the sandbox server for the tests of the routes."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "kernel")]
