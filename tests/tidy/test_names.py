"""A type name means one thing in the whole repo."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.tidy import tree

AMBIGUOUS_MAX = 10  # only falls; each of them has a side in spark
TWO_PROTOCOLS = "one request, as a command of the line protocol and as a message of the binary protocol"
TWO_SIDES = "one error, as the storage raises it and as the client does"
# Names that several modules define for one thing.
ONE_MEANING = {
    "Ack": TWO_PROTOCOLS,
    "Close": TWO_PROTOCOLS,
    "Consume": TWO_PROTOCOLS,
    "Fence": TWO_PROTOCOLS,
    "Get": TWO_PROTOCOLS,
    "Ping": TWO_PROTOCOLS,
    "Subscribe": TWO_PROTOCOLS,
    "Unsubscribe": TWO_PROTOCOLS,
    "StreamDamaged": TWO_SIDES,
    "Trimmed": TWO_SIDES,
}


def type_names(module: ast.Module) -> Iterator[str]:
    """Classes and type aliases at the top of a module. Aliases are assigned names in CamelCase."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and is_camel_case(target.id):
                yield target.id


def is_camel_case(name: str) -> bool:
    bare = name.lstrip("_")
    return bare[:1].isupper() and not bare.isupper() and "_" not in bare


def places() -> dict[str, list[Path]]:
    """The modules that define each type name."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in tree.modules():
        for name in type_names(tree.parse(path)):
            found[name].append(path)
    return found


def test_type_names_mean_one_thing() -> None:
    ambiguous = {
        name: [tree.shown(path) for path in paths]
        for name, paths in places().items()
        if len(paths) > 1 and name not in ONE_MEANING
    }
    assert len(ambiguous) <= AMBIGUOUS_MAX, f"{len(ambiguous)} names are defined for several things: {ambiguous}"


def test_names_with_one_meaning_are_defined_twice() -> None:
    assert not [name for name in ONE_MEANING if len(places()[name]) < 2]
