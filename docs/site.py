"""What the site has beyond the files of this folder, and how links of the repository read there.

The pages are written to be read in the repository too, so they link to `../spec/trust.md`. Here
those of `BESIDE` become pages; a link to any other file of the repository becomes its text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BESIDE = {
    **{f"spec/{path.name}": f"spec/{path.name}" for path in sorted((ROOT / "spec").glob("*.md"))},
    "examples/README.md": "examples.md",
}
"""Files of the repository, and where the site has them."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```\w+) [\w.]+$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    for source, place in BESIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    place = page.file.src_uri
    source = next((s for s, p in BESIDE.items() if p == place), f"docs/{place}")

    def linked(found: re.Match[str]) -> str:
        text, target = found.groups()
        path, mark, anchor = target.partition("#")
        if "://" in target or not path:
            return found[0]
        wanted = os.path.normpath(os.path.join(os.path.dirname(source), path))
        on_site = BESIDE.get(wanted)
        if on_site is None and wanted.startswith("docs/"):
            on_site = wanted.removeprefix("docs/")
            if (ROOT / wanted).is_dir():
                on_site = f"{on_site}/README.md"
        if on_site is None:
            assert (ROOT / wanted).exists(), f"{source} links to {target}, which is not there"
            return str(text)
        return f"[{text}]({os.path.relpath(on_site, os.path.dirname(place))}{mark}{anchor})"

    # What a block is for, as tests read it, is nothing to highlight by.
    return LINK.sub(linked, FENCE.sub(r"\1", markdown))
