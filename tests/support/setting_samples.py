"""One value for every setting that is not its default, as text and as the value it becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from traitlets.config import Config
from traitlets.config.loader import KVArgParseConfigLoader

from ivy_kernel.settings.settings import Ivy, is_secret, setting_names

SAMPLES: dict[str, tuple[str, Any]] = {
    "api_key": ("ivy_sample-key", "ivy_sample-key"),
    "api_url": ("https://example.org/api/", "https://example.org/api"),
    "chat_id": ("chat-1", "chat-1"),
    "campaign_id": ("campaign-1", "campaign-1"),
    "session_id": ("session-1", "session-1"),
    "recoup_api_key": ("recoup-sample-key", "recoup-sample-key"),
    "recoup_api_url": ("https://recoup.example.org", "https://recoup.example.org"),
    "recoup_session_id": ("recoup-session-1", "recoup-session-1"),
    "auto_create": ("false", False),
    "auto_create_hidden": ("true", True),
    "allow_local": ("false", False),
    "route": ("script", "script"),
    "cell_timeout_seconds": ("12.5", 12.5),
    "start_timeout_seconds": ("60", 60.0),
    "connect_timeout_seconds": ("2.5", 2.5),
    "ca_bundle": (__file__, __file__),
    "output_limit_bytes": ("12345", 12345),
    "checkpoints": ("false", False),
    "restore": ("ask", "ask"),
    "checkpoint_copy_bytes": ("5000000", 5000000),
    "response_limit_bytes": ("1234567", 1234567),
    "python_code_field": ("source", "source"),
    "notebook_code_field": ("cells", "cells"),
    "rscript_code_field": ("script", "script"),
    "exec_command_field": ("cmd", "cmd"),
    "local_idle_exit_seconds": ("99", 99.0),
}
SAMPLES.update({name: ("7", 7) for name in setting_names() if name not in SAMPLES})

SECRETS = [name for name in setting_names() if is_secret(name)]


def default(name: str) -> Any:
    """The default of a setting."""
    return Ivy.class_traits()[name].default_value


def flags(**values: str) -> Config:
    """The value that the command line makes of ``--Ivy.name=value``."""
    return KVArgParseConfigLoader(
        [f"--Ivy.{name}={value}" for name, value in values.items()]
    ).load_config()


def write_json(directory: Path, content: Any) -> Path:
    """A ``jupyter_ivy_config.json`` with these settings."""
    directory.mkdir(exist_ok=True)
    path = directory / "jupyter_ivy_config.json"
    path.write_text(json.dumps({"Ivy": content}))
    return path


def write_py(directory: Path, text: str) -> Path:
    """A ``jupyter_ivy_config.py`` with this text."""
    directory.mkdir(exist_ok=True)
    path = directory / "jupyter_ivy_config.py"
    path.write_text(text)
    return path
