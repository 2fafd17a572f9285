"""The session: our use of one sandbox, from the first look at it to the last cell.

::

    session.py         runs cells, one at a time, each to its one end
    gate.py            before a cell: sandbox, route and namespace are there, or why not
    route_choice.py    which way cells take: the best route that works, found once; a cell's run
    recovery.py        what becomes of variables when the sandbox ends: kept, and restored
    restored.py        what came back, in words; what a cell needs of it
    checkpoint_copies.py copies of checkpoints on this machine, kept up to date in the background
    lifecycle.py       the sandbox's life: status, create, terminate, and who is told of it
    local_server.py    finds or starts the embedded local sandbox's server
    start_progress.py  what shows that a start is under way, and its progress in the cell
    open.py            from settings to a session; the session ids that are kept per chat
    chats.py           the chats that this person has used, by name; the account's default chat
    output.py          how fast output is shown: throttled, coalesced, bounded
    output_limit.py    how much of it: head, tail, and the whole in a private file
    output_journal.py  what each cell has said, kept on this machine: written by the kernel
    journal_reader.py  the same read: cells as a notebook has them, and what is new
    kernel_registry.py what this user's processes tell each other: which kernel uses which sandbox,
                       and what one of them has learned of its status, and of what it uses
    notebook_record.py what this machine keeps of a notebook: keys, its cells' code, locks, copies
    private_file.py    files for their user's eyes only, written whole or not at all; the settings'
                       is one of them
    mirror.py          a directory of the sandbox that is made what a small local folder is
    files.py           the files of one sandbox, and their transfer from and to this machine
    transfer.py        the calls of a transfer: in flight, sized, repeated; how far it has come
    large_files.py     one large file's way: in chunks, verified, resumable
    local_files.py     places on this machine, which no name from a sandbox leads out of
    missing_files.py   files beside the notebook that a cell missed in the sandbox
    runs.py            notebooks that the sandbox runs by itself: handed over, found, cancelled
    receipts.py        the receipt in a notebook: what ran, in a chain of hashes, sealed with a key
    receipt_check.py   the check of a receipt: the notebook against it, it against the sandbox
    describe.py        states, deadlines and settings as lines of text
"""
