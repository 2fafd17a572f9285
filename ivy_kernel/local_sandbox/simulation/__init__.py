"""Test instruments of the local sandbox, each loaded only when a setting asks for it.

::

    platforms.py  unusual results (``result_family``, ``result_case``, ``result_nesting``) and
                  hostile ways to run a call (``runner``)
    control.py    settings and counters, served at run time (``--control``)
"""
