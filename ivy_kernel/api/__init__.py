"""The HTTP clients of the two APIs. Nothing else in the package speaks HTTP to them.

============== ==================================================================================
module         content
============== ==================================================================================
`operations`   the API operations, the error that each of their statuses becomes, and JSON bodies
`auth`         the key: the header that carries it, and its masking in everything that is shown
`connection`   one keep-alive httpx pool: time limits, size limit, the border for httpx's errors
`retry`        which failed calls are sent again, and after which pause
`clients`      one typed method per operation of the Ivy platform and of Recoup
============== ==================================================================================
"""
