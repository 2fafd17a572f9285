"""The local sandbox: both APIs of a cloud sandbox, for real, on 127.0.0.1.

For work without an account or a network, for demonstrations and for tests. Every tool starts real
processes as the user who started the server, in a directory per chat. **It is not a security
boundary**: code that runs in it can do whatever that user can do.

It shares no code with the rest of the package: a misreading of the API on both sides would
otherwise cancel out in every test.

================== ========================================================================
module             its one job
================== ========================================================================
`__main__`         the command line
`supervisor`       the entry process: starts the server, and kills what it leaves behind
`server`           listens, announces its address, stops when idle or told to
`handlers`         the routes of both APIs
`access`           credentials, rate limit, and the owners of chats
`config`           every setting: type, bounds, default, help text
`environment`      shared state, the clock, the usual runner, and the variables of processes
`sandbox`          the life of one sandbox, from provisioning to hibernation and expiry
`tools`            the eleven tools
`results`          what running code gave, in its two usual shapes; the error responses
`notebook`         the persistent kernel, and the outputs of its cells
`script`           code in fresh processes
`workspace`        a chat's directories, files, and list of registered files
`search`           grep and glob, in a process of their own
`processes`        the processes of one chat, and their output
`process_reaper`   the process that is their parent; finding and killing descendants
`simulation`       test instruments, loaded only when a setting asks: other ``platforms``'
                   results and runners, ``control`` at run time
================== ========================================================================
"""
