"""The HTTP clients of the two APIs.

============== ==============================================================
module         what it does
============== ==============================================================
`operations`   the API operations and what each error status of them means
`answers`      an answer's bytes → JSON, or the error that its status stands for
`credential`   the key: how it travels, and how it is kept out of what is shown
`connection`   one keep-alive httpx client: time limits, size limit
`retry`        when and how long to wait before a call is sent again
`ivy`          one typed method per operation of the Ivy platform
`recoup`       Recoup's session status
============== ==============================================================
"""

from ivy_kernel.api.clients import IvyClient, RecoupClient
from ivy_kernel.api.connection import ApiResponse, Connection

__all__ = ["ApiResponse", "Connection", "IvyClient", "RecoupClient"]
