"""The routes: ways to run a cell in the sandbox through the platform's tools.

============ ======================================================================
module       content
============ ======================================================================
`base`       the `Route` protocol, and what a route with a living kernel adds
`agent`      our program in the sandbox: streams, keeps a kernel, answers questions
`notebook`   one call of ``sandbox_notebook`` a cell; variables persist
`script`     one call of ``sandbox_python`` a cell; nothing persists
`one_call`   the base of the last two, and ``--tool`` and ``--lang`` cells
`tools`      the table of tools, and how code is run through them
`decode`     results of any shape → notebook outputs
`outcomes`   the outcome of a cell and the error message that says the same
`events`     news of a route beside messages
============ ======================================================================
"""
