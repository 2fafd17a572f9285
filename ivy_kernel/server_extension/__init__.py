"""The Jupyter server extension: REST and pushed events about sandboxes, for the panel.

============ =====================================================================
module       what it does
============ =====================================================================
`app`        the extension as Jupyter Server loads it
`handlers`   the routes below ``/ivy`` under the server's base URL
`events`     ``/ivy/events``: pushes what has changed
`refusals`   any error → HTTP status and the one JSON shape of errors
`board`      the sandboxes in use, kept up to date while somebody looks
`shown`      one sandbox on the board: what is known of it, and what can be done
`meanings`   settings, or a kernel's use → the sandbox that is meant, or why none is
`attached`   this server's kernels and the notebooks that they belong to
============ =====================================================================

Keys stay in this process: no route takes or gives one.
"""
