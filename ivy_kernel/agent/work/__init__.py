"""What the sandbox's kernel does beside cells, in its own process: checkpoints and the like.

It is shipped as an archive of its own (``routes.agent.programs.work_archive``), under the name
``ivy_work``, once there is a kernel; with it travels cloudpickle, as ``ivy_work.cloudpickle``.
Python 3.8 or newer and the standard library alone; what the sandbox has beside that is used where
it is there. It imports nothing of ours but its own modules, and those relatively.

::

"""
