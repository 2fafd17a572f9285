"""``python -m ivy_kernel.local_sandbox``: the command line of the local sandbox."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DESCRIPTION = """\
Run a sandbox on this machine that speaks the platform's API on 127.0.0.1, for work without an
account, for demonstrations and for tests.

It is NOT a security boundary: code that runs in it can do whatever you can do. It passes on no
secrets of your environment, and keeps the files of each chat in a directory of its own, but it
does not keep code from reading your other files or using your network.
"""

CONFIG_VARIABLE = "IVY_LOCAL_SANDBOX_CONFIG"


def _default_root() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "ivy-kernel" / "sandboxes"
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "ivy-kernel" / "sandboxes"


def _absolute(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError("it must be a number of seconds, not negative")
    return seconds


def _parser(epilog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ivy_kernel.local_sandbox",
        description=_DESCRIPTION,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--port", type=int, default=0, help="port on 127.0.0.1 (default 0: a free one)")
    add("--root", type=_absolute, default=_default_root(), help="directory of the chats' files")
    add(
        "--root-wait-seconds",
        type=_seconds,
        default=10.0,
        help="wait so long for another server in the same root to end (default 10)",
    )
    add("--runtime-file", type=_absolute, help="write url, token and pid to this private file")
    add(
        "--idle-exit-seconds",
        type=_seconds,
        default=1800.0,
        help="stop after so long without requests and busy processes (default 1800; 0: never)",
    )
    add("--config", default="{}", help="settings as a JSON object (no tokens: others can see it)")
    add("--config-file", type=_absolute, help="settings as a JSON object in a file")
    add("--control", action="store_true", help="serve /_control (settings at run time, counters)")
    add("--verbose", action="store_true", help="log every request to stderr")
    add("--supervisor-pid", type=int, default=0, help=argparse.SUPPRESS)
    add("--supervisor-descriptor", type=int, default=-1, help=argparse.SUPPRESS)
    return parser


def _epilog() -> str:
    from ivy_kernel.local_sandbox.config import described

    return f"""\
The token is taken from the environment variable IVY_LOCAL_SANDBOX_TOKEN, else made at random; it
is in the runtime file. Settings come from --config-file, then {CONFIG_VARIABLE}, then --config:

{described()}
"""


def _objects(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The JSON objects with settings, in the order in which they apply."""
    texts = []
    if options.config_file is not None:
        texts.append(("--config-file", options.config_file.read_text()))
    texts.append((CONFIG_VARIABLE, os.environ.get(CONFIG_VARIABLE) or "{}"))
    texts.append(("--config", options.config))
    objects = []
    for source, text in texts:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise SystemExit(f"{source} is not a JSON object")
        if source == "--config" and "tokens" in value:
            raise SystemExit("--config must not hold tokens, which everybody could see there")
        objects.append(value)
    return objects


def _serve(options: argparse.Namespace) -> int:
    # Imported here: the supervisor, which starts from this module too, needs none of it.
    import logging

    from ivy_kernel.local_sandbox.config import Config, ConfigError
    from ivy_kernel.local_sandbox.environment import Observer
    from ivy_kernel.local_sandbox.process_reaper import SANDBOX_ID_VARIABLE
    from ivy_kernel.local_sandbox.script import runner_of
    from ivy_kernel.local_sandbox.server import Options, serve

    config = Config()
    try:
        for value in _objects(options):
            config = config.merged(value)
    except ConfigError as error:
        raise SystemExit(f"wrong setting: {error}") from None
    if why := runner_of(config).unavailable():
        raise SystemExit(why)
    # Not to be inherited: the settings may hold tokens, and a marker is that of an outer sandbox.
    for name in (CONFIG_VARIABLE, SANDBOX_ID_VARIABLE):
        os.environ.pop(name, None)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    observer = Observer()
    if options.control:
        from ivy_kernel.local_sandbox.simulation.control import Counters  # only if asked for

        observer = Counters()
    options.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return serve(
        Options(
            port=options.port,
            root=options.root.resolve(),
            root_wait_seconds=options.root_wait_seconds,
            runtime_file=options.runtime_file,
            idle_exit_seconds=options.idle_exit_seconds,
            control=options.control,
            config=config,
            observer=observer,
            supervisor_pid=options.supervisor_pid,
            supervisor_descriptor=options.supervisor_descriptor,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the supervisor, or the server when it is the supervisor that calls."""
    if os.name != "posix":
        raise SystemExit("the local sandbox needs Linux or macOS")
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Only the help needs the settings: their module takes longer to import than the supervisor.
    wants_help = "-h" in given or "--help" in given
    options = _parser(_epilog() if wants_help else "").parse_args(given)
    if options.supervisor_descriptor >= 0:
        return _serve(options)
    from ivy_kernel.local_sandbox.supervisor import supervise

    # The server runs in another directory: paths that are relative here must be made absolute.
    for name in ("root", "runtime_file", "config_file"):
        value = getattr(options, name)
        if value is not None:
            given.append(f"--{name.replace('_', '-')}={value}")
    return supervise(given, options.runtime_file)


if __name__ == "__main__":
    raise SystemExit(main())
