"""The HTTP clients of the two APIs. Nothing else in the package speaks HTTP to them.

============== ==================================================================================
module         content
============== ==================================================================================
`operations`   the API operations, the error that each of their statuses becomes, and JSON bodies
`auth`         the key: the header that carries it, and its masking in everything that is shown
`connection`   one keep-alive httpx pool: time limits, size limit, the border for httpx's errors
`clients`      one typed method per operation of both APIs; which failed calls are sent again
============== ==================================================================================
"""
