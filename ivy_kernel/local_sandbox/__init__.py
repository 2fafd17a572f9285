"""The local sandbox: both APIs of a cloud sandbox, for real, on 127.0.0.1.

For work without an account or a network, for demonstrations and for tests. Every tool starts real
processes as the user who started the server, in a directory per chat. **It is not a security
boundary**: code that runs in it can do whatever that user can do.

It shares no code with the rest of the package: a misreading of the API on both sides would
otherwise cancel out in every test.

=============== ===========================================================================
module          its one job
=============== ===========================================================================
``__main__``    the command line
``supervisor``  the entry process: outlives the server, so that nothing outlives both
``server``      listens, writes the ``runtime_file``, stops when idle or told to
``config``      every setting, with its ``checks``
``handlers``    Ivy's routes · ``recoup`` Recoup's route · ``control`` settings at run time
``credentials`` who is asking · ``limits`` how often · ``errors`` how it is refused
``counters``    what is counted · ``clock`` what time it is said to be
``host``        what the server gives to its sandboxes
``access``      owners, campaigns and sessions of chats
``sandbox``     the life of one sandbox, from provisioning to hibernation and expiry
``tools``       the eleven tools · ``families`` the shapes in which they answer
``notebook``    the persistent kernel · ``outputs`` what a cell of it shows
``script``      code in fresh processes · ``runners`` how hostile their surroundings are
``workspace``   files, confined to a chat's directory · ``search`` grep and glob
``manifest``    the registered files · ``place`` where everything is on disk
``processes``   the processes of one chat · ``pipes`` what they print
``keeper``      the process that is their parent · ``descendants`` finding and killing them
``environment`` what they see of the user's environment, which is no secret
=============== ===========================================================================
"""
