"""Hooks of the documentation site: results/ is part of it, and links between docs/ and the rest keep working.

Pages are written for the repository, where docs/ links to ../results and ../examples. On the site results/ lies beside
the pages, and one page shows the examples.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = "examples.md"
SHOWN = (".md", ".png", ".svg")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> None:
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in SHOWN:
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point relative links to where the site has their targets; of those it does not have, the text remains.

    A number and its deviation stay on one line.
    """
    here = page.file.src_uri

    def follow(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        place = site_path(here, target)
        if place == here == EXAMPLES:
            return f"`{text}`\n\n```python\n{(ROOT / 'docs' / target).read_text('utf-8')}```"
        if files.get_file_from_path(place) is None:
            return text
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(follow, markdown).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def site_path(here: str, target: str) -> str:
    """The page of the site that holds what ``target`` names, relative to the page ``here``, in the repository.

    >>> site_path("new-nodes.md", "../results/inductive"), site_path("results/notes.md", "../docs/energy.md")
    ('results/inductive/README.md', 'energy.md')
    """
    folder = posixpath.dirname(here if here.startswith("results/") else f"docs/{here}")
    path = posixpath.normpath(posixpath.join(folder, target))
    if path.startswith("examples"):
        return EXAMPLES
    if (ROOT / path).is_dir():
        path += "/README.md"
    return path.removeprefix("docs/")
