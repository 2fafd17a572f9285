"""Test instruments of the local sandbox, each loaded only when a setting asks for it.

``result_shapes`` are the unusual results (``result_family``, ``result_case``, ``result_nesting``),
``runners`` the hostile ways to run a call (``runner``), and ``control`` serves settings and
counters at run time (``--control``).
"""
