"""What the site needs beside mkdocs: formulas, links that leave docs/, and versions.

Every version is a folder of its own. `versions.json` is what the theme's list of versions reads, in mike's format; the
page above the versions leads to the newest. A build replaces its own version only.
"""

from __future__ import annotations

import json
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
LATEST = """<!doctype html><meta charset="utf-8"><title>fedpace</title>
<meta http-equiv="refresh" content="0; url={version}/index.html"><a href="{version}/index.html">fedpace {version}</a>
"""
FORMULA = re.compile(
    r"(?P<code>```.*?```|`[^`]+`)|^(?P<indent> *)\$\$\n?(?P<shown>.*?)\n? *\$\$$|\$(?P<inline>[^$\n]+)\$",
    re.DOTALL | re.MULTILINE,
)
"""A formula in LaTeX, displayed or within a line, which GitHub renders as it is; dollars in code are none."""
LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Build into a folder of this version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_dir = str(Path(config.site_dir) / project["version"])
    return config


def on_post_build(config: Any, **_: Any) -> None:
    """List the versions that are built, and lead to the newest."""
    above = Path(config.site_dir).parent
    found = sorted(
        (version for each in above.iterdir() if each.is_dir() and (version := _version(each.name))), reverse=True
    )
    listed = [{"version": str(each), "title": str(each), "aliases": ["latest"] * (each == found[0])} for each in found]
    (above / "versions.json").write_text(json.dumps(listed, indent=1), encoding="utf-8")
    (above / "index.html").write_text(LATEST.format(version=found[0]), encoding="utf-8")


def _version(name: str) -> Version | None:
    try:
        return Version(name)
    except InvalidVersion:
        return None


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Name files of the repository that are no page, such as results as JSON: on a site they have no address."""
    here = posixpath.dirname(page.file.src_uri)

    def named(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = posixpath.normpath(posixpath.join("docs", here, target.partition("#")[0]))
        return found[0] if path.startswith("docs/") else f"{text} (`{path}`)"

    return LINK.sub(named, FORMULA.sub(_mathml, markdown))


def _mathml(found: re.Match[str]) -> str:
    """Return a formula as MathML, which browsers render without a script."""
    if found["code"]:
        return found[0]
    if found["inline"]:
        return f"<span>{convert(found['inline'])}</span>"  # a line that begins with `<math>` would be a block
    # GitHub reads `aligned`, latex2mathml its older name.
    latex = found["shown"].strip().replace("{aligned}", "{align*}")
    return f'{found["indent"]}<div class="formula">{convert(latex, display="block")}</div>'
