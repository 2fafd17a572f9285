"""The script route: what it can do, and that it says what it cannot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernel_driver import Home, KernelDriver, kernel_variables, running_kernel
from sandbox_server import running_sandbox

from ivy_kernel.routes.one_call import show_last_value


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelDriver]:
    """A kernel on the script route."""
    home = Home(tmp_path_factory.mktemp("script"))
    with running_sandbox() as server:
        variables = kernel_variables(server, "scripts", IVY_ROUTE="script")
        with running_kernel(home, variables) as running:
            yield running


def test_the_first_cell_says_that_variables_do_not_persist(kernel: KernelDriver) -> None:
    """The notice comes once; a variable of one cell is not there in the next."""
    first = kernel.run("x = 5")
    assert "variables and imports do not persist" in first.text("stderr")
    second = kernel.run("x")
    assert second.reply["ename"] == "NameError"
    assert "do not persist" not in second.text("stderr")


def test_files_persist_from_cell_to_cell(kernel: KernelDriver) -> None:
    """The chat's directory is the same for each script."""
    kernel.run("open('note.txt', 'w').write('kept')")
    assert kernel.run("print(open('note.txt').read())").text() == "kept\n"


def test_the_last_value_is_shown(kernel: KernelDriver) -> None:
    """As in a cell: an expression at the end shows its value, with a semicolon it does not."""
    assert kernel.run("a = 20\na + 1").text() == "21\n"
    assert kernel.run("'text'").text() == "'text'\n"
    assert kernel.run("None").text() == ""
    assert kernel.run("5;").text() == ""


def test_a_failing_script_is_a_failing_cell(kernel: KernelDriver) -> None:
    """Name, value and line of the user's own code are in the error."""
    cell = kernel.run("a = 1\n\nraise ValueError('wrong thing')")
    assert (cell.reply["ename"], cell.reply["evalue"]) == ("ValueError", "wrong thing")
    assert "line 3" in "\n".join(cell.reply["traceback"])
    assert cell.error is not None


def test_a_traceback_speaks_of_the_users_line(kernel: KernelDriver) -> None:
    """Showing the last value changes no line number."""
    cell = kernel.run("zero = 0\n(1 /\n zero)")
    assert cell.reply["ename"] == "ZeroDivisionError"
    assert "line 2" in "\n".join(cell.reply["traceback"]) or "line 3" in "\n".join(
        cell.reply["traceback"]
    )


def test_a_script_that_exits_tells_its_code(kernel: KernelDriver) -> None:
    """sys.exit(3) is a failed cell; sys.exit(0) is none."""
    failed = kernel.run("import sys; sys.exit(3)")
    assert failed.reply["status"] == "error"
    assert "3" in failed.reply["evalue"]
    assert kernel.run("import sys; sys.exit(0)").reply["status"] == "ok"


def test_user_expressions_are_refused_with_the_reason(kernel: KernelDriver) -> None:
    """Each is an error that says why, and the cell itself is well."""
    cell = kernel.run("1", user_expressions={"e": "1"})
    assert cell.reply["status"] == "ok"
    assert "do not persist" in cell.reply["user_expressions"]["e"]["evalue"]


def test_completion_finds_nothing_and_does_not_fail(kernel: KernelDriver) -> None:
    """Nobody is there to ask."""
    assert kernel.ask("complete", "pri", 3)["matches"] == []
    assert kernel.ask("inspect", "print", 3)["found"] is False


@pytest.mark.parametrize(
    "code",
    [
        "", "x", "x;", "x  # remark", "x = 1; x", "def f():\n    return 1\nf()", "(\n1,\n2)\n",
        "'''\nmulti\n'''", "x if y else z", "lambda: 0", "[i for i in range(3)]", "ä = 'ö'; ä",
        "'ü' + 'é'", "await thing", "print(1)\n\n\n", "import a\n#end", "f(\n  a,\n  b,\n)  # z",
        "def broken(:", "%magic", "x\\\n+ 1", "if 1:\n  x", "yield_ = 1\nyield_\t",
    ],
)  # fmt: skip
def test_the_changed_code_still_parses_with_the_same_lines(code: str) -> None:
    """What is added never breaks code that parses, and never moves a line."""
    import ast

    changed = show_last_value(code)
    assert changed.count("\n") == code.count("\n")
    try:
        before = ast.parse(code)
    except SyntaxError:
        assert changed == code
        return
    after = ast.parse(changed)
    assert len(before.body) == len(after.body)
    assert [node.lineno for node in before.body] == [node.lineno for node in after.body]
