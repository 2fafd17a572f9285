"""The matplotlib backend that shows figures in the cell: Agg's canvas and ``display.show``.

Imported by matplotlib alone, which ``MPLBACKEND=module://…`` points here.
"""

from __future__ import annotations

import importlib

from .display import show

__all__ = ["FigureCanvas", "show"]

FigureCanvas = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg
