"""The agent route: a real kernel in the sandbox, behind capped request/response tool calls.

::

    route.py      AgentRoute: what a session asks of it
    options.py    its limits and choices, in one object
    requests.py   the requests in flight, by message id; what is known of the sandbox's kernel
    connection.py the connection to one agent: found, lost, found again
    start.py      finds out how an agent can live in a sandbox, and starts it
    poller.py     keeps long polls in flight: once, in order, soon
    pacing.py     when to poll, for how long, and how much an answer may hold (pure)
    failures.py   which failed calls are made again; what failures in a row mean
    calls.py      one call, and calls that carry all that is unacknowledged
    frames.py     the agent's answer, found in a tool's result; the log put together from slices
    programs.py   the code that travels with each call, and the agent as an archive

``docs/agent-protocol.md`` tells what travels.
"""
