"""``jupyter ivy``: the command line.

============ ================================================================
module       content
============ ================================================================
`app`        the program, and the base of its commands
`run`        ``run`` and ``demo``: whole notebooks
`runs`       ``runs`` and ``run --detach``: notebooks that the sandbox runs by itself
`execution`  a notebook's run: its file, its cells in order, signals
`verify`     ``verify``: a notebook against its receipt, its outputs against another run
`comparison` outputs of two runs: exact, within tolerance, different, or why neither
`crate`      a run as a Process Run RO-Crate
`sandbox`    ``status``, ``create``, ``terminate``, ``files``, ``serve``
`doctor`     ``doctor``: findings about settings, network and kernel
`setup`      ``install``, ``login``, ``logout``, ``chats``
============ ================================================================
"""
