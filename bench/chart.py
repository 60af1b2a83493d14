"""The results as one picture: a panel a row, a bar a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import figures
from bench.contest import Cell, Results

_COLUMNS = 2
_PANEL_WIDTH, _BAR_HEIGHT, _PANEL_MARGIN = 7.5, 0.27, 0.75  # inches
_OURS, _THEIRS, _CEILING = "#1f6f8b", "#9aa5ab", "#d9d2c0"


class NoChart(Exception):
    """matplotlib is not installed."""


def draw(path: Path, results: Results, caption: str) -> None:
    """Write a PNG. NoChart if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise NoChart("no chart: matplotlib is not installed (it is in the extra `bench`)") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = _panels(results)
    rows = -(-len(panels) // _COLUMNS)
    heights = [max(len(cells) for cells in panels[i : i + _COLUMNS]) for i in range(0, len(panels), _COLUMNS)]
    size = (_PANEL_WIDTH * _COLUMNS, sum(_PANEL_MARGIN + _BAR_HEIGHT * height for height in heights) + 1)
    figure, axes = pyplot.subplots(rows, _COLUMNS, figsize=size, squeeze=False, height_ratios=[h + 2 for h in heights])
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


def _panel(axis: Any, cells: list[Cell]) -> None:
    row = cells[0].row
    axis.barh(
        [cell.peer.title for cell in cells], [cell.value for cell in cells], color=[_colour(cell) for cell in cells]
    )
    axis.invert_yaxis()
    axis.set_xscale("log")
    for place, cell in enumerate(cells):
        axis.text(cell.value, place, f" {figures.count(cell.value)}", va="center", fontsize=7)
    better = ", less is better" if row.lower_is_better else ""
    axis.set_title(f"{row.title}\n{row.unit}{better}, logarithmic", fontsize=8, loc="left")
    axis.tick_params(labelsize=7)
    axis.margins(x=0.15)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _colour(cell: Cell) -> str:
    if cell.peer.name.startswith("tailrace"):
        return _OURS
    return _CEILING if cell.peer.title.startswith("(") else _THEIRS
