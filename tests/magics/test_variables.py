"""``%ivy push``, ``%ivy pull``, ``%%ivy --in`` and ``--out``, in a plain kernel and in ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from home import Home
from kernel_driver import running
from magic_driver import MagicKernel, magic_variables
from sandbox_server import RunningSandbox


class Sides:
    """A kernel, and how code is run on both sides of it.

    Parameters
    ----------
    kernel
        The kernel.
    """

    def __init__(self, kernel: MagicKernel) -> None:
        self.kernel = kernel

    def here(self, code: str) -> str | None:
        """Run code in this process; return the value's text."""
        cell = self.kernel.run(code if self.kernel.is_plain else f"%%local\n{code}")
        assert cell.reply["status"] == "ok", cell.reply
        return cell.result

    def there(self, code: str) -> str | None:
        """Run code in the sandbox; return the value's text."""
        cell = self.kernel.ivy(code)
        assert cell.reply["status"] == "ok", cell.reply
        return cell.result


@pytest.fixture(scope="module", params=["python3", "ivy-sandbox"])
def sides(
    request: pytest.FixtureRequest,
    server: RunningSandbox,
    new_chat: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sides]:
    """Both sides of a plain kernel with the magics, and of an Ivy Sandbox kernel."""
    home = Home(tmp_path_factory.mktemp("sides"))
    variables = magic_variables(server, new_chat())
    with running(MagicKernel(home, variables, request.param)) as kernel:
        yield Sides(kernel)


FRAME = """
import pandas as pd
df = pd.DataFrame({'n': [1, 2], 's': ['a', None], 'c': pd.Categorical(['u', 'v'])})
df.index = pd.date_range('2024-01-01', periods=2, tz='Europe/Berlin', name='when')
"""


def test_a_frame_goes_there_and_back(sides: Sides) -> None:
    """It is equal after both ways, and each way is told in one line."""
    sides.here(FRAME)
    pushed = sides.kernel.run("%ivy push df")
    assert "pushed df: DataFrame, 2 rows × 3 columns" in pushed.text(), pushed.reply
    assert sides.there("df['n'].sum(), str(df.index.tz)") == "(np.int64(3), 'Europe/Berlin')"

    pulled = sides.kernel.run("%ivy pull back=df")
    assert "pulled df as back: DataFrame, 2 rows × 3 columns" in pulled.text(), pulled.reply
    assert sides.here("pd.testing.assert_frame_equal(back, df)\nback is df") == "False"
