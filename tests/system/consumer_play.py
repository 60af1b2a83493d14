"""Plays cells of the crash matrix, all those of one victim at once: each to its point, one fall, then to the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.system.consumer_cells import ON_NODE, Cell
from tests.system.consumer_ground import Ground
from tests.system.consumer_proxy import CrashProxy
from tests.system.consumer_scene import Scene


def play(ground: Ground, cells: Sequence[Cell], folder: Path, *, at_random: bool = False) -> list[Scene]:
    """Play these cells; returns their scenes, in order. `at_random`: requests that are sent may be looked at before the
    fall.
    """
    (victim,) = {cell.victim for cell in cells}
    streams = ground.streams(f"{folder.name}-", len(cells))
    with CrashProxy() as proxy, ThreadPoolExecutor(len(cells)) as pool:
        scenes = [Scene(cell, ground, proxy, stream, folder) for cell, stream in zip(cells, streams, strict=True)]
        try:
            _each(pool, scenes, Scene.prepare)
            if victim in ON_NODE and not at_random:
                ground.pause(victim)
            _each(pool, scenes, Scene.fall)
            if victim in ON_NODE:
                ground.fall(victim)
            _each(pool, scenes, Scene.go_on)
            if victim in ON_NODE:
                ground.mend(victim)
            _each(pool, scenes, Scene.settle)
        finally:
            for scene in scenes:
                scene.close()
    return scenes


def _each(pool: ThreadPoolExecutor, scenes: Sequence[Scene], step: Callable[[Scene], None]) -> None:
    """Run a step for all scenes at once. A failure goes to the faults of its scene; the others go on without it."""
    under_way = {pool.submit(step, scene): scene for scene in scenes if not scene.failed}
    for future, scene in under_way.items():
        failure = future.exception()
        if failure is not None:
            scene.failed = True
            scene.faults.append(f"{step.__name__}: {failure!r}")
