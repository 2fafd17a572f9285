"""Brings back what ``?name`` finds, where only a cell's outputs come back.

IPython hands help texts to a pager by the reply's ``payload``, which a tool's result does not hold.
So a cell that ends in such a line gets one more statement, which displays the payload as an output
of a type of ours; here it becomes the payload again (message spec, "Payloads"). Where the platform
drops that type, the text itself is left as an ordinary output.
"""

from __future__ import annotations

import re

from ivy_kernel.models import Json, Message, Sink

MIME_TYPE = "application/vnd.ivy-kernel.page+json"

_SHOW = f"""
for _ivy_page in get_ipython().payload_manager.read_payload():
    if _ivy_page.get('source') == 'page':
        __import__('IPython').display.display(
            {{'text/plain': _ivy_page['data'].get('text/plain', ''), '{MIME_TYPE}': _ivy_page}},
            raw=True)
get_ipython().payload_manager.clear_payload()
_ivy_page = None; del _ivy_page
"""

_NAME = r"%{0,2}[^\W\d][\w.*\[\]]*"
_HELP_LINE = re.compile(
    rf"\?{{1,2}}\s*{_NAME}|{_NAME}\?{{1,2}}|%(pinfo2?|psearch|pdoc|pdef|psource|pfile)\s.*"
)


def with_pages_shown(code: str) -> str:
    """The code, made to display its help text if its last line asks for help."""
    last = code.rstrip().rpartition("\n")[2].strip().rstrip(";")
    return code + _SHOW if _HELP_LINE.fullmatch(last) else code


class Pages:
    """Takes displayed payloads out of a cell's messages.

    Parameters
    ----------
    sink
        Takes all other messages.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.payload: list[Json] = []

    def __call__(self, message: Message) -> None:
        """Take one message."""
        data = message.content.get("data")
        page = data.get(MIME_TYPE) if isinstance(data, dict) else None
        if message.msg_type == "display_data" and isinstance(page, dict):
            self.payload.append(page)
        else:
            self._sink(message)
