"""Leaf: find the filters that match a topic. Stateless: the trie is an argument (`broker.topics.trie` makes it).

A node of the trie is a list of four: CHILDREN, a dictionary from a level's bytes to the node below it, or None; PLUS,
the node below `+`, or None; HERE, the number of the filter that ends at this node, or NO_FILTER; BELOW, that of the
filter that ends with `#` below this node, or NO_FILTER. A child of which only HERE is used is that number instead: of a
million topics with a subscriber each nearly all are. Load this module through `shard.leaves`.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

CHILDREN, PLUS, HERE, BELOW = 0, 1, 2, 3
NO_FILTER = -1

_CHILDREN = cython.declare(cython.Py_ssize_t, CHILDREN)
_PLUS = cython.declare(cython.Py_ssize_t, PLUS)
_HERE = cython.declare(cython.Py_ssize_t, HERE)
_BELOW = cython.declare(cython.Py_ssize_t, BELOW)
_NO_FILTER = cython.declare(cython.Py_ssize_t, NO_FILTER)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def match(root: list[Any], topic: bytes) -> tuple[int, ...]:
    """The numbers of all filters in the trie that match a valid topic, in no order.

    It goes down one level of the topic after the other and visits a node at most once, so it visits at most as many
    nodes as the trie has. Wildcards in the first level do not match if the topic begins with `$`.
    """
    found: list = []
    nodes: list = [root]
    leaves: list = []
    below: list
    node: list
    children: dict
    hidden: cython.bint = topic.startswith(b"$")
    number: cython.Py_ssize_t
    for level in topic.split(b"/"):
        leaves = []
        if not nodes:
            break
        below = []
        for node in nodes:
            if not hidden:
                number = node[_BELOW]
                if number != _NO_FILTER:
                    found.append(number)
                plus = node[_PLUS]
                if plus is not None:
                    below.append(plus)
            children = node[_CHILDREN]
            child = children.get(level) if children else None
            if isinstance(child, list):
                below.append(child)
            elif child is not None:
                leaves.append(child)
        nodes = below
        hidden = False
    found += leaves
    for node in nodes:
        number = node[_HERE]
        if number != _NO_FILTER:
            found.append(number)
        number = node[_BELOW]
        if number != _NO_FILTER:
            found.append(number)
    return tuple(found)
