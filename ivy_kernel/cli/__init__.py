"""``jupyter ivy``: the command line.

============ ================================================================
module       content
============ ================================================================
`app`        the program, and the base of its commands
`run`        ``run`` and ``demo``: whole notebooks
`execution`  a notebook's run: its file, its cells in order, signals
`sandbox`    ``status``, ``create``, ``terminate``, ``files``, ``serve``
`doctor`     ``doctor``: findings about settings, network and kernel
`setup`      ``install``, ``login``, ``logout``, ``chats``
============ ================================================================
"""
