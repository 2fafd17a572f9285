"""``jupyter ivy``: the command line."""
