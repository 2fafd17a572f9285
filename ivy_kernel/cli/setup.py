"""``jupyter ivy install · login · logout · chats``: what is done once, and the account."""

from __future__ import annotations

import getpass
import json
import shlex
import shutil
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from traitlets import Bool, Unicode

from ivy_kernel.cli.app import (
    DEBUG_FLAG,
    EXIT_FAILED,
    JSON_FLAG,
    YES_FLAG,
    IvyCommandApp,
    confirmed,
    interruptible,
    packaged_directory,
    print_line,
    read_answer,
)
from ivy_kernel.errors import IvyError, NetworkError, SettingError, UsageError
from ivy_kernel.session.private_file import Saved, kept_keys, remove_keys
from ivy_kernel.settings.settings import Ivy, is_secret

KERNEL_NAME = "ivy-sandbox"
"""The kernelspec of our kernel."""


class InstallApp(IvyCommandApp):
    """Make the kernel known to a Jupyter that is installed in another environment.

    jupyter ivy install [--user | --sys-prefix | --prefix PATH]

    Installing the package has made it known to the Jupyter of its own environment. This writes a
    kernelspec that names this environment's Python by its full path: for all Jupyters of this user
    (--user, the default), for this environment's (--sys-prefix), or for that of the environment at
    PATH (--prefix).
    """

    name = "jupyter-ivy-install"
    description = __doc__
    aliases = {  # noqa: RUF012 - declared so by traitlets
        **IvyCommandApp.aliases,
        "prefix": "InstallApp.prefix",
    }
    flags = {  # noqa: RUF012 - likewise
        **DEBUG_FLAG,
        "user": ({"InstallApp": {"user": True}}, "For all Jupyters of this user; the default."),
        "sys-prefix": (
            {"InstallApp": {"sys_prefix": True}},
            "For the Jupyter of this Python's environment.",
        ),
    }
    user = Bool(False, help="For all Jupyters of this user; the default.").tag(config=True)
    sys_prefix = Bool(False, help="For the Jupyter of this Python's environment.").tag(config=True)
    prefix = Unicode("", help="For the Jupyter of the environment at this path.").tag(config=True)

    async def run(self) -> int:
        """Install it, and say where, and how to remove it."""
        if self.user + self.sys_prefix + bool(self.prefix) > 1:
            raise UsageError("Give one of --user, --sys-prefix and --prefix PATH.")
        prefix = (
            sys.prefix if self.sys_prefix else self.prefix and str(Path(self.prefix).absolute())
        )
        directory = install_kernelspec(prefix)
        print_line(f"The kernelspec {KERNEL_NAME} is in {directory}, and starts {sys.executable}.")
        print_line(f"To remove it:  rm -r {shlex.quote(directory)}")
        return 0


def install_kernelspec(prefix: str) -> str:
    """Write the kernelspec with this Python's full path; return its directory.

    Parameters
    ----------
    prefix
        The environment whose Jupyter is to find it; empty for all Jupyters of this user.

    Raises
    ------
    IvyError
        When it cannot be written.
    """
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / KERNEL_NAME
        shutil.copytree(packaged_directory("kernelspec"), copy)
        spec_file = copy / "kernel.json"
        spec = json.loads(spec_file.read_bytes())
        spec["argv"][0] = sys.executable
        spec_file.write_text(json.dumps(spec, indent=2) + "\n")
        manager: Any = KernelSpecManager()
        try:
            return str(
                manager.install_kernel_spec(
                    str(copy), KERNEL_NAME, user=not prefix, prefix=prefix or None
                )
            )
        except OSError as exc:
            where = prefix or manager.user_kernel_dir
            raise IvyError(
                f"The kernelspec cannot be written below {where}: {exc.strerror}."
            ) from None


def kernelspec_fault() -> tuple[str, str]:
    """Return where Jupyter finds the kernelspec, and what is wrong with it; empty for nothing."""
    try:
        spec = KernelSpecManager().get_kernel_spec(KERNEL_NAME)
    except NoSuchKernel:
        return "", f"Jupyter finds no kernel {KERNEL_NAME}"
    interpreter = Path(spec.argv[0])
    if interpreter.is_absolute() and not interpreter.exists():
        return spec.resource_dir, f"{spec.resource_dir} starts {interpreter}, which is not there"
    return spec.resource_dir, ""


def jupyter_command(command: str) -> str:
    """Return a command of this environment's Jupyter, for a shell in which it works as printed.

    The plain name is given only where it means this environment's.
    """
    jupyter = Path(sysconfig.get_path("scripts")) / "jupyter"
    found = shutil.which("jupyter")
    if found is not None and Path(found).resolve() == jupyter.resolve():
        return f"jupyter {command}"
    if jupyter.exists():
        return f"{shlex.quote(str(jupyter))} {command}"
    return f"{shlex.quote(sys.executable)} -m jupyter {command}"


# The account --------------------------------------------------------------------------------------
_QUESTIONS = {
    "api_key": "Key of the Ivy platform",
    "chat_id": "Chat (its id)",
    "campaign_id": "Campaign of the chat (its id)",
    "recoup_session_id": "Recoup session, for countdowns (optional)",
    "recoup_api_key": "Recoup's key",
}
_REMOVED = "-"
"""The answer that removes a value."""


class LoginApp(IvyCommandApp):
    """Save key, chat and campaign in Jupyter's config file, after a check with the platform.

    jupyter ivy login [--chat ID] [--campaign ID] [--recoup-session ID] [--key-from-stdin]

    Asks for what the command line does not say, and shows what is set; a key is neither shown nor
    echoed. With --key-from-stdin nothing is asked: the first line of stdin is the key, a second
    one, if there is any, Recoup's. The file gets mode 0600, and its other content stays. Running
    kernels and servers use the new values at once.
    """

    name = "jupyter-ivy-login"
    description = __doc__
    aliases = {  # noqa: RUF012 - declared so by traitlets
        **IvyCommandApp.aliases,
        "chat": "Ivy.chat_id",
        "campaign": "Ivy.campaign_id",
        "recoup-session": "Ivy.recoup_session_id",
    }
    flags = {  # noqa: RUF012 - likewise
        **JSON_FLAG,
        "key-from-stdin": (
            {"LoginApp": {"key_from_stdin": True}},
            "Read the key from stdin, and ask nothing.",
        ),
        "no-check": ({"LoginApp": {"check": False}}, "Save without asking the platform."),
    }
    key_from_stdin = Bool(False, help="Read the key from stdin, and ask nothing.").tag(config=True)
    check = Bool(True, help="Check with the platform before saving.").tag(config=True)

    async def run(self) -> int:
        """Ask, check, save, and say what was done; the exit code."""
        # Here, since `jupyter ivy run` begins with this module too.
        from ivy_kernel.session.chats import ACCOUNT_SETTINGS, save_account

        live = self.live_settings()
        present: Ivy | None = None
        try:
            present = live.current()
        except SettingError as error:
            if error.setting not in ACCOUNT_SETTINGS:
                raise  # it would be in the way afterwards too
        # What the command line names is meant to stay.
        given = {name: str(value) for name, value in self.cli_config.get("Ivy", {}).items()}
        if self.key_from_stdin:
            changes = given | _keys_from_stdin()
        elif sys.stdin.isatty():
            changes = given | _ask_for_account(present, given)
        else:
            raise UsageError(
                "login asks for the key, and nobody can answer here; send it by --key-from-stdin."
            )
        try:
            saved = await save_account(live, changes, check=self.check)
        except NetworkError as error:
            print_line(f"{self.name}: {error}", error=True)
            if self.key_from_stdin or not confirmed("Save it all the same?", "login"):
                raise IvyError(
                    "Nothing was saved, since the key could not be checked; try again, or add "
                    "--no-check."
                ) from None
            saved = await save_account(live, changes, check=False)
        except (SettingError, UsageError):
            raise
        except IvyError as error:
            raise IvyError(f"{error} Nothing was saved.") from None
        self._tell(saved)
        return 0

    def _tell(self, saved: Saved) -> None:
        if self.as_json:
            self.print_json(
                {
                    "saved": list(saved.names),
                    "config_file": str(saved.path),
                    "checked": saved.checked or None,
                    "notes": list(saved.notes),
                }
            )
            return
        for sentence in (saved.checked, *saved.notes) if saved.checked else saved.notes:
            print_line(sentence)
        names = ", ".join(saved.names)
        print_line(f"Saved in {saved.path}, for you alone: {names or 'nothing new'}.")


class LogoutApp(IvyCommandApp):
    """Remove the keys from Jupyter's config file, after asking; all else in it stays."""

    name = "jupyter-ivy-logout"
    description = __doc__
    flags = {**JSON_FLAG, **YES_FLAG}  # noqa: RUF012 - declared so by traitlets applications

    async def run(self) -> int:
        """Ask, then remove; the exit code."""
        names = kept_keys()
        question = f"Remove {' and '.join(names)} from the config file?"
        if names and not self.yes and not confirmed(question, "logout"):
            print_line("Nothing was removed.")
            return EXIT_FAILED
        saved = remove_keys()
        if self.as_json:
            facts = {"config_file": str(saved.path), "notes": list(saved.notes)}
            self.print_json({"removed": names, **facts})
            return 0
        removed = f"Removed {' and '.join(names)} from" if names else "No key is in"
        for sentence in (f"{removed} {saved.path}.", *saved.notes):
            print_line(sentence)
        return 0


class ChatsApp(IvyCommandApp):
    """List the chats that you have used: name, id, campaign, last use. %ivy chats names them."""

    name = "jupyter-ivy-chats"
    description = __doc__
    flags = JSON_FLAG

    async def run(self) -> int:
        """List them, last used first."""
        from ivy_kernel.session.chats import list_chats  # as above
        from ivy_kernel.session.describe import chats_table

        settings = self.live_settings().current()
        chats, default_id = list_chats(settings), settings.used_chat_id
        if self.as_json:
            rows = [chat.to_json(default_id) for chat in chats]
            self.print_json({"chats": rows, "default": default_id or None})
        else:
            print_line(chats_table(chats, default_id).rstrip("\n"))
        return 0


def _keys_from_stdin() -> dict[str, str]:
    lines = sys.stdin.read(100_000).splitlines()
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise UsageError("No key came on stdin; send it as the first line.")
    return dict(zip(("api_key", "recoup_api_key"), keys, strict=False))


def _ask_for_account(present: Ivy | None, given: dict[str, str]) -> dict[str, str]:
    """Ask for each setting that is not given; an empty answer keeps what is shown."""
    answers: dict[str, str] = {}
    shown = {name: "" if present is None else str(getattr(present, name)) for name in _QUESTIONS}
    for name, question in _QUESTIONS.items():
        value = shown[name]
        if name in given:
            continue
        if name == "recoup_api_key" and not (shown | given | answers)["recoup_session_id"]:
            continue  # without a session nothing is asked there
        facts = ("set" if value else "not set") if is_secret(name) else value or "not set"
        remove = f", {_REMOVED} removes it" if value and name != "api_key" else ""
        prompt = f"{question} [{facts}{', Enter keeps it' if value else ''}{remove}]: "
        answer = (_secret(prompt) if is_secret(name) else _line(prompt)).strip()
        if answer == _REMOVED and remove:
            answers[name] = ""
        elif answer:
            answers[name] = answer
            if name == "chat_id" and answer != value:
                # What belongs to the chat before is proposed, or not, for this one.
                answers["campaign_id"] = shown["campaign_id"] = _campaign_of(present, answer)
                shown["recoup_session_id"] = ""
    return answers


def _campaign_of(present: Ivy | None, chat_id: str) -> str:
    """Return the campaign that was noted for a chat, else the present one."""
    from ivy_kernel.session.chats import find_chat  # as above

    if present is None:
        return ""
    chat = find_chat(present, chat_id)
    return (chat and chat.campaign_id) or present.campaign_id


def _line(prompt: str) -> str:
    try:
        return read_answer(prompt)
    except EOFError:
        raise UsageError("The questions were not answered; nothing was saved.") from None


def _secret(prompt: str) -> str:
    with warnings.catch_warnings():
        # Rather no key than one that is echoed.
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            with interruptible():
                return getpass.getpass(prompt)
        except (getpass.GetPassWarning, EOFError):
            raise UsageError(
                "The key cannot be asked for here without showing it; send it by --key-from-stdin."
            ) from None
