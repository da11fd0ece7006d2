"""Codecs by name and by operator, found by entry point; other packages are asked for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import Generic, TypeVar

from ..diagnostics import Diagnostic, FBError
from .contract import FLOATS, NAMESPACE, Codec, Place, read_op

T = TypeVar("T")

GROUP = "remat_compile.codecs"
"""The entry point group that codecs register in."""
_OWN = "remat-compile"


@cache
def own() -> dict[str, Codec]:
    """The codecs of this package; empty if it is not installed."""
    try:
        points = distribution(_OWN).entry_points.select(group=GROUP)
    except PackageNotFoundError:
        return {}
    return {point.name: _loaded(point) for point in points}


@cache
def plugins() -> dict[str, Codec | FBError]:
    """The codecs of other packages, or why one cannot be taken (FB0558). Where two register a name,
    this package's own is taken."""
    found: dict[str, Codec | FBError] = {}
    for point in entry_points(group=GROUP):
        if point.name not in own():
            try:
                found[point.name] = _loaded(point)
            except FBError as error:
                found[point.name] = error
    return found


def _loaded(point: EntryPoint) -> Codec:
    package = point.dist.name if point.dist is not None else "an unknown package"
    try:
        codec: Codec = point.load()
        why = next(_faults(codec, point.name), None)
    except Exception as error:  # a plug-in may raise anything at all
        why = f"{type(error).__name__}: {error}"
    if why is not None:
        message = f'codec "{point.name}" ({point.value} of {package}) cannot be taken: {why}'
        raise FBError(Diagnostic("FB0558", message, hint=f"repair or uninstall {package}"))
    return codec


def _faults(codec: object, name: str) -> Iterator[str]:
    """Where a declaration contradicts itself, or what the language has of codecs."""
    if not isinstance(codec, Codec):
        yield f"it is a {type(codec).__name__}, no Codec"
        return
    if codec.name != name or not name.isidentifier():
        yield f'its name is "{codec.name}"'
    if (codec.size is None) == (codec.form == "bytes") or (
        codec.form == "bytes" and codec.packed_type != "u8"
    ):
        yield "codecs of the form `bytes`, and no others, have a `size`, and pack into u8"
    if bool(codec.places) != (codec.contract == "reader-exact"):
        yield f"its contract is {codec.contract}, and places are those of a reader-exact one"
    if codec.is_lossy and not (codec.axiom and codec.types <= FLOATS):
        yield "a lossy codec packs floating-point numbers, and states a bound on their error"
    if codec.is_random and not codec.is_lossy:
        yield f"its contract is {codec.contract}, and what is rounded at random is lossy"
    if ":" not in codec.kernels:
        yield f'kernels are named "module:attribute", not "{codec.kernels}"'


class _Known(Mapping[str, T], Generic[T]):
    """The offers of codecs, by a key of each. Plug-ins are looked for where a key is not an own
    one's; FB0558 for that of one which cannot be taken."""

    def __init__(self, offered: Callable[[Codec], Iterable[tuple[str, T]]], prefix: str = ""):
        self.offered, self.prefix = offered, prefix

    def __getitem__(self, key: str) -> T:
        if not key.startswith(self.prefix):
            raise KeyError(key)
        known = dict(pair for codec in own().values() for pair in self.offered(codec))
        if key not in known:
            for name, codec in plugins().items():
                if isinstance(codec, Codec):
                    known |= dict(self.offered(codec))
                elif key in (name, f"{self.prefix}pack_{name}.default"):
                    raise codec
        return known[key]

    def __iter__(self) -> Iterator[str]:
        codecs = (*own().values(), *(c for c in plugins().values() if isinstance(c, Codec)))
        return (key for codec in codecs for key, _ in self.offered(codec))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _unpacks(codec: Codec) -> Iterator[tuple[str, Codec]]:
    if codec.form != "single" and not codec.is_read:
        yield codec.unpack_op, codec


Reading = tuple[Codec, str, int, tuple[tuple[int, int], ...]]


def _reads(codec: Codec) -> Iterator[tuple[str, Reading]]:
    places: tuple[tuple[Place, tuple[tuple[int, int], ...]], ...]
    places = codec.places if codec.is_read else ()
    for (op, place), given in places:
        yield read_op(op, codec.name), (codec, op, place, given)


CODECS = _Known[Codec](lambda codec: [(codec.name, codec)])
PACKS = _Known[Codec](lambda codec: [(codec.pack_op, codec)], f"{NAMESPACE}.")
UNPACKS = _Known[Codec](_unpacks, f"{NAMESPACE}.")
READS = _Known[Reading](_reads, f"{NAMESPACE}.")
"""By operator: its codec, and the operator that it is read in place of, with the place there of the
source and other arguments, which the call of a codec leaves out."""
