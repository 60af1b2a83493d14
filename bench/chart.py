"""The results as one picture: a panel a row, a bar a peer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bench import figures
from bench.contest import Cell, Results
from bench.table import value_text

_COLUMNS = 2
_PANEL_WIDTH, _BAR_HEIGHT, _PANEL_MARGIN = 7.5, 0.27, 0.75  # inches
_OURS, _THEIRS, _CEILING = "#1f6f8b", "#9aa5ab", "#d9d2c0"
# Beyond this ratio of the longest bar to the shortest, a linear axis would hide the short ones.
_LINEAR_RATIO_MAX = 30.0


class NoChart(Exception):
    """matplotlib is not installed, or nothing was measured."""


def draw(path: Path, results: Results, caption: str) -> None:
    """Write a PNG. Raises NoChart."""
    try:
        import matplotlib
    except ImportError as error:
        raise NoChart("no chart: matplotlib is not installed (it is in the extra `bench`)") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = _panels(results)
    if not panels:
        raise NoChart("no chart: nothing was measured")
    heights = [max(len(cells) for cells in panels[i : i + _COLUMNS]) for i in range(0, len(panels), _COLUMNS)]
    size = (_PANEL_WIDTH * _COLUMNS, sum(_PANEL_MARGIN + _BAR_HEIGHT * height for height in heights) + 1)
    ratios = [height + 2 for height in heights]
    figure, axes = pyplot.subplots(len(heights), _COLUMNS, figsize=size, squeeze=False, height_ratios=ratios)
    for place, axis in enumerate(axes.flat):
        if place < len(panels):
            _panel(axis, panels[place])
        else:
            axis.set_axis_off()
    figure.suptitle(caption, fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panels(results: Results) -> list[list[Cell]]:
    """The measured cells of each row that has any."""
    rows = dict.fromkeys(cell.row.name for cell in results.cells)
    panels = [[cell for cell in results.cells if cell.row.name == row and cell.rounds] for row in rows]
    return [cells for cells in panels if cells]


def axis_range(values: list[float]) -> tuple[float, float, bool]:
    """Where the axis begins and ends, and whether it is logarithmic; then it begins at a power of ten, well below."""
    low, high = min(values), max(values)
    if low <= 0 or high / low <= _LINEAR_RATIO_MAX:
        return 0.0, high * 1.15, False
    return float(10 ** math.floor(math.log10(low / 2))), high * 3, True


def _panel(axis: Any, cells: list[Cell]) -> None:
    row, values = cells[0].row, [cell.value for cell in cells]
    axis.barh([cell.peer.title for cell in cells], values, color=[_colour(cell) for cell in cells])
    axis.invert_yaxis()
    begin, end, logarithmic = axis_range(values)
    axis.set_xscale("log" if logarithmic else "linear")
    axis.set_xlim(begin, end)
    for place, cell in enumerate(cells):
        axis.text(cell.value, place, f" {_label(cell)}", va="center", fontsize=7)
    better = ", less is better" if row.lower_is_better else ""
    axis.set_title(f"{row.title}\n{row.unit}{better}{', logarithmic' if logarithmic else ''}", fontsize=8, loc="left")
    axis.tick_params(labelsize=7)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _label(cell: Cell) -> str:
    p99_us = cell.extra("p99_us")
    return value_text(cell) + (f" (p99 {figures.microseconds(p99_us)})" if p99_us is not None else "")


def _colour(cell: Cell) -> str:
    if cell.peer.name.startswith("tailrace"):
        return _OURS
    return _CEILING if cell.peer.title.startswith("(") else _THEIRS
