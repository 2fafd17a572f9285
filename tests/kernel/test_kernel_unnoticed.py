"""Our own process notices every request, whichever ipykernel it is built on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kernel_driver import Home, KernelDriver

DEAF_IPYKERNEL = Path(__file__).parents[1] / "support" / "deaf_ipykernel"


@pytest.mark.timeout(180)
def test_requests_that_come_while_a_reply_is_sent_are_answered(tmp_path: Path) -> None:
    """A row of them, as a front end sends when a notebook is opened and run at once."""
    kernel = KernelDriver(Home(tmp_path), {"PYTHONPATH": str(DEAF_IPYKERNEL)})
    try:
        kernel.start()
        asked = []
        for _ in range(4):
            asked += [kernel.client.kernel_info(), kernel.client.execute("%%local\n1")]
            time.sleep(0.1)
        answered: set[str] = set()
        while not answered.issuperset(asked):  # replies of the start may be among them
            reply = kernel.client.get_shell_msg(timeout=20)
            answered.add(reply["parent_header"]["msg_id"])
    finally:
        kernel.kill()
