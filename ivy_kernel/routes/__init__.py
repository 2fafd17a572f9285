"""The ways to run a cell through the platform's tools."""
