"""MkDocs hook: adds pages from outside of this folder and rewrites links between them.

The pages are written to be read in the repository too, so they link to `../spec/trust.md`. Here
files of `BESIDE` become pages, and a link to any other file of the repository becomes its text.
The list of JAX operators is generated from the table of lowerings.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BESIDE = {
    **{f"spec/{path.name}": f"spec/{path.name}" for path in sorted((ROOT / "spec").glob("*.md"))},
    "examples/README.md": "examples.md",
}
"""Files of the repository, and their places on the site."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```\w+) [\w.]+$", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    pages = {p: (ROOT / source).read_text(encoding="utf-8") for source, p in BESIDE.items()}
    pages["reference/jax_operators.md"] = jax_operators()
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def jax_operators() -> str:
    """A page with every ATen operator that has a JAX lowering, by family."""
    from remat_compile.backends.jax.lowerings import FAMILIES, table

    text = "# ATen operators that the JAX backend runs\n"
    for family in sorted(FAMILIES, key=lambda f: f.__name__):
        ops = sorted(op for op, f in table().items() if f.__module__ == family.__name__)
        title = (family.__doc__ or "").splitlines()[0]
        text += f"\n## {title}\n\n" + "".join(f"* `{op}`\n" for op in ops)
    return text


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
        if on_site is None:
            assert (ROOT / wanted).exists(), f"{source} links to {target}, which is not there"
            return str(text)
        return f"[{text}]({os.path.relpath(on_site, os.path.dirname(place))}{mark}{anchor})"

    # A second word after the language is for the tests; it is no lexer.
    return LINK.sub(linked, FENCE.sub(r"\1", markdown))
