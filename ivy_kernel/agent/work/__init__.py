"""What the sandbox's kernel does beside cells, in its own process: checkpoints and the like.

It is shipped as an archive of its own (``routes.agent.programs.work_archive``), under the name
``ivy_work``, once there is a kernel; with it travels cloudpickle, as ``ivy_work.cloudpickle``.
Python 3.8 or newer and the standard library alone; what the sandbox has beside that is used where
it is there. It imports nothing of ours but its own modules, and those relatively.

::

    packages.py    the packages that are there, what changed since, and how they come back
    receipt.py     a record of each cell: code, fate, times, packages, files; chained by hash
    audit.py       what Python tells of a running cell: files, processes, the network
    files_used.py  what the system tells of files that are opened unseen
    requests.py    the parts, and the requests and hooks that reach them
    checkpoint.py  the state after a cell: when it is written, and how it is brought back
    process.py     the forked process that writes it, while the notebook goes on
    values.py      variables in groups that share objects, into the store and back from it
    pickling.py    the pickler: what pickle and cloudpickle would bring back as something else
    live.py        what a pickle names rather than holds, and what makes its objects anew
    state.py       what else decides over later values: random states, directory, options
    store.py       the files of checkpoints: objects by hash, signed indexes, the space they take
"""

from __future__ import annotations

from typing import Any

from .requests import Work


def open_work(host: Any) -> Work:
    """Return the work for this kernel (``extension.Host``); it does nothing until configured."""
    return Work(host)
