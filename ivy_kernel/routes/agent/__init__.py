"""The agent route: a real kernel in the sandbox, behind capped request/response tool calls.

::

    route.py      AgentRoute: runs cells, interrupts them, and takes other requests to the kernel
    requests.py   the table of requests in flight; what is known of the sandbox's kernel
    connection.py starts the agent as works in this sandbox; the connection to it, lost and reopened
    poller.py     keeps long polls in flight
    pacing.py     AgentOptions; when to poll, how long, and how much a response may hold (pure)
    failures.py   which failed calls are repeated, and when the agent counts as gone
    calls.py      single calls; submissions and interrupts, carried until acknowledged
    frames.py     reads the agent's response in a tool's result, and the log in its slices
    programs.py   the code that travels with each call, and the agent as an archive

``docs/agent-protocol.md`` describes requests, responses and the log.
"""
