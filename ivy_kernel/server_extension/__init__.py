"""The Jupyter server extension: REST and pushed events about sandboxes, for the panel.

=========== ==========================================================================
module      contents
=========== ==========================================================================
`app`       the extension as Jupyter Server loads it: its routes below ``/ivy``, its event stream
`chats`     the chats by name, and the account: what a form shows and saves
`documents` writes what cells have said into their documents while no page is open
`errors`    any error → HTTP status and the one JSON shape of errors
`files`     the sandboxes' files as Jupyter contents: the drive
`folder`    one sandbox's folder in the drive: listings, manifest, what is on its way there
`outputs`   what a page has missed: each cell's outputs, from the kernels' journals
`sandboxes` the registry of the sandboxes in use, polled while there is a viewer; base of handlers
`sandbox`   one sandbox in the registry: its status, and the actions on it
`targets`   settings, or a kernel's registry entry → the sandbox, or why there is none
=========== ==========================================================================

Keys stay in this process: ``POST /ivy/account`` takes one, and no route gives one.
"""
