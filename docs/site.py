"""What the site needs beside mkdocs: formulas, links that leave docs/, and pictures from elsewhere in the project."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
FORMULA = re.compile(r"^( *)\$\$\n(.*?)\n *\$\$$", re.DOTALL | re.MULTILINE)
"""A displayed formula in LaTeX, which GitHub renders as it is."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)\s]+)\)")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pictures of results, which lie beside their records."""
    for picture in sorted((ROOT / "experiments" / "results").glob("*.png")):
        uri = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Name files of the repository that are no page, such as results as JSON: on a site they have no address."""
    here = posixpath.dirname(page.file.src_uri)

    def named(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        path = posixpath.normpath(posixpath.join("docs", here, target.partition("#")[0]))
        if path.startswith("docs/"):
            return found[0]
        if picture:
            return f"![{text}]({posixpath.relpath(path, here or '.')})"
        return f"{text} (`{path}`)"

    return LINK.sub(named, FORMULA.sub(_mathml, markdown))


def _mathml(found: re.Match[str]) -> str:
    """Return a formula as MathML, which browsers render without a script."""
    return f'{found[1]}<div class="formula">{convert(found[2].strip(), display="block")}</div>'
