"""After a restart every chat that the kernel had used begins with an empty namespace, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_driver import KernelDriver, StartKernel

from ivy_kernel.kernel import restart
from ivy_kernel.kernel.restart import RestartMark


def attach(kernel: KernelDriver, chat: str) -> None:
    """Send the cells that follow to another chat."""
    cell = kernel.run(f"%ivy attach {chat} --campaign campaign-of-{chat}")
    assert cell.reply["status"] == "ok", cell.reply


@pytest.mark.parametrize("route", ["agent", "notebook"])
def test_a_restart_empties_each_attached_chat_when_it_is_next_used(
    start_kernel: StartKernel, chats: tuple[str, str], route: str
) -> None:
    """Not only the one that runs the first cell; and each of them only once."""
    first, second = chats
    kernel = start_kernel(chat_id=first, IVY_ROUTE=route)
    kernel.run("x = 'of the first'")
    attach(kernel, second)
    kernel.run("x = 'of the second'")
    kernel.restart()
    assert kernel.run("'x' in globals()").result == "False"
    kernel.run("y = 'made since'")
    attach(kernel, first)
    assert kernel.run("'x' in globals()").result == "False"
    attach(kernel, second)
    assert kernel.run("y").result == "'made since'"
    attach(kernel, first)
    assert not list(kernel.home.runtime.glob("ivy-restart-*"))


def test_a_chat_that_was_not_used_between_two_restarts_is_emptied_after_the_second(
    start_kernel: StartKernel, chats: tuple[str, str]
) -> None:
    """What is left to do is left to the next process too."""
    first, second = chats
    kernel = start_kernel(chat_id=first, IVY_ROUTE="agent")
    attach(kernel, second)
    kernel.run("x = 1")
    kernel.restart()
    attach(kernel, first)
    kernel.run("1")
    kernel.restart()
    attach(kernel, second)
    assert kernel.run("'x' in globals()").result == "False"


def test_a_cell_with_options_counts_as_the_first_one(
    start_kernel: StartKernel, chats: tuple[str, str]
) -> None:
    """What ``%%ivy`` has made after a restart survives that the chat is left for a while."""
    first, second = chats
    kernel = start_kernel(chat_id=first, IVY_ROUTE="agent")
    kernel.run("x = 1")
    kernel.restart()
    kernel.run("%%ivy\ny = 'made since'")
    attach(kernel, second)
    attach(kernel, first)
    assert kernel.run("y").result == "'made since'"


def test_marks_are_of_one_kernel_and_stay_once_they_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that ends while the process does takes none away, and another kernel sees none."""
    monkeypatch.setattr(restart, "jupyter_runtime_dir", lambda: str(tmp_path))
    ending, other = RestartMark("kernel-1.json"), RestartMark("kernel-2.json")
    here, there = ("https://a", "chat"), ("https://b", "chat")
    ending.set([here])
    ending.remove(here)
    following = RestartMark("kernel-1.json")
    assert following.is_set(here)
    assert not following.is_set(there)
    assert not other.is_set(here)
    other.set([here])
    following.remove_all()
    assert not following.is_set(here)
    assert other.is_set(here)
