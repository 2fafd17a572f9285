"""Makes any ipykernel as deaf as 7.0 to 7.3 can be, whenever a request comes soon after another.

Those send a reply behind the back of the stream that reads the same socket; a request that arrives
meanwhile is not seen before somebody connects (https://github.com/ipython/ipykernel/issues/1554).
Here "meanwhile" lasts long enough to be hit each time. On ``PYTHONPATH``, this is imported by every
interpreter.
"""

import time

try:
    from ipykernel.subshell_manager import SubshellManager
except ImportError:
    SubshellManager = None

REPLY_SECONDS = 0.15


def made(self, *args, **kwargs):
    """Keep the raw socket, as 7.3 does."""
    init(self, *args, **kwargs)
    if not hasattr(self, "_shell_socket"):
        self._shell_socket = self._shell_stream.socket


def send(self, msg):
    """Send on it, slowly."""
    time.sleep(REPLY_SECONDS)
    self._shell_socket.send_multipart(msg)


if SubshellManager is not None:
    init = SubshellManager.__init__
    SubshellManager.__init__ = made
    SubshellManager._send_on_shell_channel = send
