"""Joint graph -> FB-Graph: storages become aNodes, allocating operations cNodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import nullcontext

from ..._torch.joint import Joint, trace_joint
from ..._torch.lowered import Exported, Lowered
from ..._torch.places import recorded_places
from ..._torch.whole import unchanged
from .assemble import assemble
from .build import Builder
from .prepare import prepare

__all__ = ["lower"]


@contextlib.contextmanager
def lower(exported: Exported) -> Iterator[Lowered]:
    """Traces and lowers `exported`; the result is valid inside the `with` block.

    Deterministic: the same model gives the same text. Raises FBError FB0501 (not
    traceable) and FB0506 to FB0508 for constructs outside the language, all at once.
    """
    with (
        unchanged(exported.original),
        recorded_places(exported.original) if exported.is_live else nullcontext(),
        trace_joint(exported.traced, exported.trace_args, exported.trace_kwargs) as joint,
    ):
        yield _lower(exported, joint)


def _lower(exported: Exported, joint: Joint) -> Lowered:
    prepare(joint.graph_module)
    builder = Builder(exported, joint)
    builder.read()
    return assemble(builder)
