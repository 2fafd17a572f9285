"""Which comms are open in the sandbox's kernel, told by the messages that pass here.

The sandbox is asked first (message spec, "Comm info"). This is for when it does not answer in time:
a page that is told "no comms" forgets its widgets for good.
"""

from __future__ import annotations

from ivy_kernel.models import Json, Message
from ivy_kernel.routes.events import AgentLost, AgentOpened, Event, KernelDied, KernelReady


class RemoteComms:
    """The open comms of one session's kernel.

    Attributes
    ----------
    is_complete
        Whether all of them are known: not so after attaching to a kernel that was living already,
        until it has listed its comms itself.
    """

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}
        self._generation = 0
        self.is_complete = False

    def told(self, message: Message) -> None:
        """Take a message of the sandbox; those that open or close no comm change nothing."""
        if message.msg_type.startswith("comm_"):
            self._take(message.msg_type, message.content)

    def sent(self, request: Json) -> None:
        """Take a comm message of the front end, on its way to the sandbox."""
        self._take(request["header"]["msg_type"], request["content"])

    def _take(self, msg_type: str, content: Json) -> None:
        comm_id = str(content.get("comm_id", ""))
        if msg_type == "comm_open":
            self._targets[comm_id] = str(content.get("target_name", ""))
        elif msg_type == "comm_close":
            self._targets.pop(comm_id, None)

    def listed(self, comms: Json) -> None:
        """The kernel has listed all its comms: adds those that were opened before our time."""
        if not self.is_complete:
            self._targets = {
                comm_id: str(one.get("target_name", "")) for comm_id, one in comms.items()
            }
            self.is_complete = True

    def on_event(self, event: Event) -> None:
        """Notice what the agent route tells of the kernel's life: comms end with it."""
        if isinstance(event, AgentOpened):
            self._generation = 0
            if not event.is_found:
                self._targets.clear()
            self.is_complete = not event.is_found
        elif isinstance(event, KernelReady):
            if self._generation not in (0, event.generation):
                self._begin_anew()
            self._generation = event.generation
        elif isinstance(event, AgentLost | KernelDied):
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._targets.clear()
        self.is_complete = True

    def info(self, target_name: str | None) -> Json:
        """The open comms, by id, as a kernel lists them.

        Parameters
        ----------
        target_name
            Only those of one target; empty for all.
        """
        return {
            comm_id: {"target_name": target}
            for comm_id, target in self._targets.items()
            if target_name in (None, "", target)
        }
