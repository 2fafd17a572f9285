"""``jupyter ivy``: the command line.

============ ================================================================
module       content
============ ================================================================
`app`        the program, and the base of its commands
`run`        ``run`` and ``demo``: whole notebooks
`sandbox`    ``status``, ``create``, ``terminate``, ``files``, ``chats``, ``serve``
`doctor`     ``doctor``: findings about settings, network and kernel
`setup`      ``install``, ``login``, ``logout``: what is done once
============ ================================================================
"""
