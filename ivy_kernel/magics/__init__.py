"""``%ivy`` and ``%%ivy``: cells of any Python notebook or terminal run in the sandbox."""

SHELL_ATTRIBUTE = "_ivy_magics"
"""Where an IPython shell keeps the magics that `ivy_magics.load` has added to it."""
