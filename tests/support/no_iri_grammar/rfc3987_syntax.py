"""Hides the package of this name from the tests and the processes that they start.

jsonschema imports it, if it is there, for its check of the format ``iri``, which no schema of
Jupyter uses. Importing it compiles 38 grammars: 2 s of CPU time in each Jupyter server, each
``jupyter ivy run`` and each worker of pytest. Without it, jsonschema leaves the check out.
"""

raise ImportError("hidden by the tests")
