"""The option `lossy`: which codec may make gradients approximate, as in `int4{seed=7}`."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.codecs import CODECS, Codec
from ..ir.diagnostics import Diagnostic, FBError, nearest
from ..ir.wording import worded
from ..planners.spelling.text import parse_text
from .files.files import keep_text

FAMILIES = ("linear", "all")


@dataclass(frozen=True)
class LossyCodec:
    """A lossy codec, and the seed by which it rounds, where it does so at random."""

    name: str
    seed: int = 0

    @property
    def codec(self) -> Codec:
        return CODECS[self.name]


def read_lossy_codec(text: str | None, family: str) -> LossyCodec | None:
    """The codec asked for. FB0561 for one that is none, or does not go with the family of codecs;
    FB0558 for a plug-in that cannot be taken."""
    if text is None:
        if family in FAMILIES:
            named = "int4" if family == "linear" else "int8"
            hint = worded("name the codec too, as {lossy}", lossy=named)
            raise _refusal(
                f"codecs {family} makes gradients approximate, which nobody allowed", hint
            )
        return None
    keep_text("<planner>", str(text))
    parsed = parse_text(str(text))
    known = [name for name in CODECS if CODECS[name].is_lossy]
    codec = CODECS.get(parsed.name)
    if codec is None or not codec.is_lossy:
        others = f"lossy codecs: {', '.join(known)}"
        what = "is lossless" if codec else f"is no codec.{nearest(parsed.name, known)}"
        raise _refusal(f'"{parsed.name}" {what}', others)
    options = {option.name: option.value for option in parsed.options}
    seed = options.pop("seed", 0)
    if options or not (type(seed) is int and 0 <= seed < 2**63) or (seed and not codec.is_random):
        form = f"write {codec.name}{'{seed=7}' * codec.is_random}; a seed is from 0 to 2^63 - 1"
        raise _refusal(f'"{text}" has options that {codec.name} does not take', form)
    if family == "linear" and not codec.is_random:
        unbiased = ", ".join(name for name in known if CODECS[name].is_random)
        hint = worded(f"take one of {unbiased}, or {{codecs}}", codecs="all")
        raise _refusal(f"codecs linear keeps gradients unbiased, and {codec.name} does not", hint)
    return LossyCodec(codec.name, seed)


def _refusal(message: str, hint: str) -> FBError:
    return FBError(Diagnostic("FB0561", message, hint=hint), usage=True)
