"""Jupyter's own test suite for kernels, on the notebook route."""

from __future__ import annotations

from typing import Any

import jupyter_kernel_test as suite
import pytest
from jupyter_kernel_test.msgspec_v5 import validate_message
from kernel_driver import Home, is_idle, kernel_variables, running_kernel
from sandbox_server import running_sandbox, until

Json = dict[str, Any]


@pytest.fixture(scope="class")
def _suite_kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A kernel for the suite, connected to a sandbox that is there already."""
    home = Home(tmp_path_factory.mktemp("suite"))
    with running_sandbox() as server:
        server.ready("suite", "session-of-suite", "campaign-of-suite")
        variables = kernel_variables(server, "suite")
        with running_kernel(home, variables) as kernel:
            kernel.run("'sandbox and route are there'")
            # The first completion loads a library over there, for longer than anybody waits.
            until(lambda: kernel.ask("complete", "zi", 2)["matches"], "a completion", 30)
            request.cls.km, request.cls.kc = kernel.manager, kernel.client
            yield


@pytest.mark.usefixtures("_suite_kernel")
class TestIvySandboxKernel(suite.KernelTests):
    """Every sample of the suite is filled, but for one that the notebook route cannot carry.

    ``code_clear_output``: the platform applies ``clear_output`` itself, so that its effect arrives
    and not the message (``test_clear_output_and_display_updates_have_their_effect``).
    """

    kernel_name = "ivy-sandbox"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('to stderr', file=sys.stderr)"
    completion_samples = [  # noqa: RUF012 - declared so by the suite
        {"text": "import_this_is_nothing", "matches": set()},
        {"text": "zi", "matches": {"zip"}},
    ]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x\n\n\n"]  # noqa: RUF012
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]  # noqa: RUF012
    invalid_code_samples = ["import = 7q", "x = )"]  # noqa: RUF012
    code_generate_error = "raise ValueError('wrong')"
    code_execute_result = [  # noqa: RUF012
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data = [  # noqa: RUF012
        {
            "code": "from IPython.display import HTML, display; display(HTML('<b>t</b>'))",
            "mime": "text/html",
        },
        {
            "code": "from IPython.display import Math, display; display(Math('x'))",
            "mime": "text/latex",
        },
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_page_something = "zip?"
    code_inspect_sample = "zip"

    @classmethod
    def setUpClass(cls) -> None:
        """The fixture has started the kernel."""

    @classmethod
    def tearDownClass(cls) -> None:
        """The fixture ends the kernel."""

    def execute_helper(
        self,
        code: str,
        timeout: int = suite.TIMEOUT,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = True,
    ) -> tuple[Json, list[Json]]:
        """As the suite's own, which allows a tenth of a second for each output."""
        msg_id = self.kc.execute(
            code, silent=silent, store_history=store_history, stop_on_error=stop_on_error
        )
        reply = self.get_non_kernel_info_reply(timeout=timeout)
        validate_message(reply, "execute_reply", msg_id)
        messages: list[Json] = []
        while not (messages and is_idle(messages[-1])):
            messages.append(self.kc.get_iopub_msg(timeout=timeout))
            validate_message(messages[-1], messages[-1]["msg_type"], msg_id)
        states = [m["content"]["execution_state"] for m in messages if m["msg_type"] == "status"]
        assert states == ["busy", "idle"]
        assert messages[0]["msg_type"] == "status"
        inputs = [m["content"]["code"] for m in messages if m["msg_type"] == "execute_input"]
        assert all(each == code for each in inputs)
        return reply, [m for m in messages if m["msg_type"] not in ("status", "execute_input")]

    def ask(self, msg_type: str, *arguments: Any) -> Json:
        """The content of a reply; the kernel gives up soon on a sandbox that is busy."""
        msg_id = getattr(self.kc, msg_type)(*arguments)
        reply = self.get_non_kernel_info_reply(timeout=suite.TIMEOUT)
        validate_message(reply, f"{msg_type}_reply", msg_id)
        return dict(reply["content"])

    def test_completion(self) -> None:
        """As the suite's own, but asked again."""
        for sample in self.completion_samples:
            text, matches = sample["text"], sample["matches"]
            until(lambda: set(self.ask("complete", text)["matches"]) == matches, text, 30)  # noqa: B023 - called at once

    def test_inspect(self) -> None:
        """As the suite's own, but asked again."""
        self.flush_channels()

        def is_found() -> bool:
            content = self.ask("inspect", self.code_inspect_sample)
            assert content["status"] == "ok"
            return bool(content["found"] and content["data"])

        until(is_found, "the inspection", 30)

    def test_clear_output(self) -> None:
        """Not on this route, see the class."""
        self.skipTest("the platform's notebook tool applies clear_output itself")


def test_the_suite_is_the_one_that_is_installed() -> None:
    """The samples above belong to the suite's present names."""
    for name in vars(TestIvySandboxKernel):
        if name.startswith(("code_", "completion_", "complete_", "incomplete_", "invalid_")):
            assert hasattr(suite.KernelTests, name), name
