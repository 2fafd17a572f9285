"""The one version of the distribution; pyproject.toml and package.json read it from here."""

__version__ = "0.1.0"
