"""matplotlib's figures, shown as pictures in the cell that drew them."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Publish = Callable[[dict[str, Any]], None]

BACKEND = "module://" + __name__.replace("figures", "figure_backend")
"""What ``MPLBACKEND`` is set to."""

_publishers: list[Publish] = []


def show(*_: Any, **__: Any) -> None:
    """What ``plt.show()`` does: publish every open figure, then close it."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not _publishers:
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", bbox_inches="tight")
        size = "x".join(str(int(x * figure.dpi)) for x in figure.get_size_inches())
        plain = f"<Figure size {size} with {len(figure.axes)} Axes>"
        _publishers[-1]({"image/png": picture.getvalue(), "text/plain": plain})
    pyplot.close("all")


def show_through(publish: Publish) -> None:
    """Where figures go from now on. Called by the shell once."""
    _publishers.append(publish)
