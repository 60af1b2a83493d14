"""Types of the values of arguments and options. Each refuses the empty text, which is what an unset variable of a shell
becomes: a command must not go on with the default in its place.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import click

SECONDS_MAX: Final = 1e9
"""About 30 years. Timers of the system overflow at some more."""
EMPTY: Final = "must not be empty"


class Filled(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Any text but the empty one."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(EMPTY, param, ctx)
        return value


FILLED: Final = Filled()


class FilePath(click.Path):  # type: ignore[type-arg,unused-ignore]
    """A path of a file or folder; "" would be the working directory."""

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, file_okay=file_okay, dir_okay=dir_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(EMPTY, param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A number of seconds, neither infinite nor "nan", which compares as no number does."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(seconds) or seconds > SECONDS_MAX:
            self.fail(f"{value!r} is not a number of seconds (at most {SECONDS_MAX:,.0f})", param, ctx)
        return super().convert(value, param, ctx)
