"""Counts idioms in comments, docstrings, documents and deployment files.

    python -m tests.tidy.voice                     idioms per 1,000 words, a line for each folder
    python -m tests.tidy.voice client docs/spark   each idiom in these folders or files

Code is not prose: text in backticks and fenced blocks do not count, so names such as `told` or `say` may be quoted.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.tidy import tree

# Calibrated on commit 96bb301. Change a text to lower its count; do not narrow a pattern.
IDIOMS = {
    "what-noun": r"\bwhat (?:is|was|has|have|had|are|were|of|its?|they|there|this|that|comes|came|became|cannot"
    r"|waits)\b(?![^.;:]*\?)",  # a question is not a noun
    "tell-say": r"\b(?:tells?|told|telling|says?|said|saying)\b",
    "where-if": r"\bwhere (?:it|its|there|that|this|these|those|they|their|no|none|nobody|nothing|not|one|an?|what|only"
    r"|some|something|each|two|all|in)\b",
    "is-no": r"\b(?:is|are|was|were) (?-i:none|no)\b(?! (?:longer|more)\b)",
    "hear": r"\b(?:hears?|heard|hearing)\b",
    "whoever": r"\b(?:whoever|whom|whomever|whatever|so many|so long)\b",
}
OPENING = "opening"  # of docstrings only
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in IDIOMS.items()}
OPENING_PATTERN = re.compile(r"(?:Of|One an?|One \w+ an?)\b")
NAMES = (*IDIOMS, OPENING)

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"``?[^`]*``?|\bTOLD\b")  # TOLD is a message of the binary protocol
COMMENT = re.compile(r"^\s*#+[!: ]*(.*)$|  # (.*)$")  # as the formatter leaves them
REMARK = re.compile(r"(?:^|\s)#[ !]?(.*)$|^\s*(?:summary|description|Description[= ]):?\s*(.*)$")

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Block = tuple[int, str, bool]  # line, text in one line, whether it is a docstring


def blocks(path: Path) -> Iterator[Block]:
    """The pieces of prose in a file: docstrings, comments that stand together, paragraphs."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from docstrings(tree.parse(path))
        yield from joined(remarks(text, COMMENT))
    elif path.suffix == ".md":
        yield from paragraphs(text)
    else:
        yield from joined(remarks(text, REMARK))


def docstrings(module: ast.Module) -> Iterator[Block]:
    left: list[ast.AST] = [module]
    while left:
        node = left.pop()
        if isinstance(node, DOCUMENTED) and (found := ast.get_docstring(node)):
            yield node.body[0].lineno, flat(found), True
        left += (each for each in ast.iter_child_nodes(node) if isinstance(each, tree.HOLDERS))


def remarks(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        found = pattern.search(line)
        if found:
            yield number, found[1] or found[2] or ""


def paragraphs(text: str) -> Iterator[Block]:
    outside_fences = FENCED.sub(lambda fenced: "\n" * fenced[0].count("\n"), text)
    line = 1
    for part in re.split(r"(\n\s*\n)", outside_fences):
        if part.strip():
            yield line, flat(part), False
        line += part.count("\n")


def joined(lines: Iterable[tuple[int, str]]) -> Iterator[Block]:
    """Lines that follow each other as one block."""
    rows = list(lines)
    begins = [0, *(at for at, (before, after) in enumerate(pairwise(rows), 1) if after[0] != before[0] + 1)]
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        if rows[begin:end]:
            yield rows[begin][0], flat(" ".join(text for _, text in rows[begin:end])), False


def flat(text: str) -> str:
    return " ".join(QUOTED.sub("CODE", text).split())


def found_in(block: Block) -> Iterator[tuple[str, str]]:
    """(idiom, the words that show it) of a block."""
    _, text, is_docstring = block
    for name, pattern in PATTERNS.items():
        yield from ((name, match[0]) for match in pattern.finditer(text))
    if is_docstring and (opening := OPENING_PATTERN.match(text)):
        yield OPENING, opening[0]


def folder_of(path: Path) -> str:
    """The top folder of a file; README.md counts as a document, other files of the root as `.`."""
    parts = path.relative_to(tree.ROOT).parts
    return parts[0] if len(parts) > 1 else "docs" if path.suffix == ".md" else "."


@dataclass(slots=True)
class Count:
    """Words and idioms of a folder."""

    words: int = 0
    idioms: Counter[str] = field(default_factory=Counter)

    def rate(self, idiom: str) -> float:
        return 1000 * self.idioms[idiom] / self.words


def count_folders() -> dict[str, Count]:
    """The count of each top folder that has any prose."""
    counts: dict[str, Count] = defaultdict(Count)
    for path in tree.text_files():
        for block in blocks(path):
            count = counts[folder_of(path)]
            count.words += len(block[1].split())
            count.idioms.update(name for name, _ in found_in(block))
    return dict(counts)


def main(wanted: list[str]) -> None:
    if wanted:
        for path in tree.text_files():
            if tree.shown(path).startswith(tuple(wanted)):
                for block in blocks(path):
                    for name, words in found_in(block):
                        print(f"{tree.shown(path)}:{block[0]}: {name}: {words!r} in {block[1][:300]!r}")
        return
    print(f"{'':12}" + "".join(f"{name:>11}" for name in NAMES))
    for folder, count in sorted(count_folders().items()):
        print(f"{folder:12}" + "".join(f"{count.rate(name):11.2f}" for name in NAMES))


if __name__ == "__main__":
    main(sys.argv[1:])
