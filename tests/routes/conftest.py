"""Finds the kernel's driver and the sandbox server for the tests of the routes."""

from __future__ import annotations
