"""Where in the user's model a node of the joint graph comes from."""

from __future__ import annotations

import re
from pathlib import Path

from torch import fx

from ..._torch.places import is_users
from ...ir.span import Loc

__all__ = ["place_of"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def place_of(node: fx.Node) -> Loc | None:
    """File (base name only) and line of the user's innermost frame, and the module path."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    user = [frame for frame in frames if is_users(frame[0])]
    file, line = user[-1] if user else ("", "0")
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    module = next((str(path) for path, _ in reversed(stack.values()) if path), "")
    if not file and not module:
        return None
    return Loc(Path(file).name, int(line), module)
