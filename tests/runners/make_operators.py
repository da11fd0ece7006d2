"""Writes the tables of operators from the installed PyTorch: `make_operators.py`.

`operators/pytorch.txt` has all overloads of `aten` and `prims`; `verifier/check/operators.txt` has
those that do more than compute new tensors. `tests/operators/test_table.py` makes both again.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import torch
from torch._ops import OpOverload

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.paths import ROOT
from remat_compile.operators import PURE
from remat_compile.operators.schema import flags_of

PACKAGE = ROOT / "src" / "remat_compile"
TABLE = PACKAGE / "operators" / "pytorch.txt"
OF_CHECKER = PACKAGE / "verifier" / "check" / "operators.txt"

OF_PYTORCH = frozenset(
    (
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test"),
        *("_native", "_quantized", "_test", "c10d", "c10d_functional", "debug_mode_ops"),
        *("debugprims", "export", "flex_lib", "fsdp", "higher_order", "inductor", "inductor_prims"),
        *("mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx_symbolic", "prim", "profiler"),
        *("quantization", "quantized", "rngprims", "sparse", "static_runtime", "streams"),
        *("symm_mem", "torchbind", "xnnpack"),
    )
)
"""The other namespaces that PyTorch registers, some of them later: operators there talk to other
processes, record profiles, hand out raw memory or serve a compiler."""

UNCHECKED = re.compile(
    "_reshape_alias|segment_reduce|_segment_reduce_backward|resize|resize_as|_resize_output|set"
    "|_sparse_(?:coo|compressed|csr|csc|bsr|bsc)_tensor_unsafe"
)
"""Operators that build tensors over memory that is not theirs, and that no training step needs.
Many kernels besides trust their arguments (`max_pool2d_with_indices_backward` its indices), and
training needs them: that is why a plan of a stranger is run in a process with limits."""

SHARED = re.compile(
    r"_unsafe_view|unsafe_(?:chunk|split|split_with_sizes)|lift|data|broadcast_tensors|meshgrid"
    r"|atleast_\dd"
)
"""Operators whose results lie in the storage of an argument, though their schemas say nothing."""
OF_INDUCTOR = re.compile(
    "prims::(inductor_.*|_low_memory_.*|_unsafe_index_put_|fma|prepare_softmax_online)"
)
"""Operators that Inductor registers, when it is loaded, for its own graphs."""
MAYBE_SHARED = re.compile("_cast_.*|(?:native_)?channel_shuffle|sum_to_size|to_dense.*|type_as")
"""Those that give an argument back where there is nothing to do."""


def flags(op: OpOverload) -> str:
    """What schema and tags tell, and where these are silent, the rules of this module."""
    name = op._schema.name.partition("::")[2]
    own = flags_of(op)
    if UNCHECKED.fullmatch(name):
        own = f"x{own}"
    if "empty" in name and "w" not in own:
        own += "u"
    if SHARED.fullmatch(name) and "w" not in own:
        own = own.replace("m", "") + "v"
    if MAYBE_SHARED.fullmatch(name) and not {"w", "v"} & {*own}:
        own += "m"
    return own + running_statistics(op)


def running_statistics(op: OpOverload) -> str:
    """Batch norm that updates running statistics in place, which its schema does not say. Forms
    that return new statistics give five tensors and more, and `no_` ones take what there is."""
    schema = op._schema
    names = [argument.name for argument in schema.arguments]
    updates = {"momentum", "exponential_average_factor"} & {*names} and "running_mean" in names
    if not updates or schema.is_mutable or "_no_" in schema.name or len(schema.returns) > 5:
        return ""
    if schema.name.endswith("_functional"):
        return ""
    trains = [names.index(n) for n in ("training", "use_input_stats") if n in names]
    return f"w{names.index('running_mean')},{trains[0] if trains else len(names)}"


def operators() -> Iterator[OpOverload]:
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = qualified.partition("::")
        if namespace in PURE and not OF_INDUCTOR.fullmatch(qualified):
            name, _, overload = rest.partition(".")
            packet = getattr(getattr(torch.ops, namespace), name)
            yield getattr(packet, overload or "default")


def table() -> dict[str, str]:
    """Flags of each overload, and of whole namespaces as `c10d.*`."""
    unknown = dict.fromkeys(("aten.*", "prims.*"), "q")
    return (
        {str(op): flags(op) for op in operators()} | {f"{n}.*": "c" for n in OF_PYTORCH} | unknown
    )


def words(names: Iterable[str]) -> str:
    """`aten.add.Tensor aten.add.Scalar` as `aten.add.Scalar,Tensor`, wrapped."""
    parted = sorted(name.rpartition(".")[::2] for name in names)
    packed = (
        f"{name}.{','.join(o for _, o in group)}" for name, group in groupby(parted, lambda p: p[0])
    )
    return textwrap.fill(" ".join(packed), 100, break_long_words=False, break_on_hyphens=False)


def sections(known: Mapping[str, str]) -> str:
    by_flags = defaultdict(list)
    for name, own in known.items():
        by_flags[own].append(name)
    return "".join(f"[{f}]\n{words(by_flags[f])}\n" for f in sorted(by_flags))


def of_checker(known: Mapping[str, str]) -> str:
    """Without what computes new tensors only, and without what is unknown."""
    return sections({name: own for name, own in known.items() if own.strip("q")})


def main() -> None:
    known = table()
    head = f"Operators of PyTorch {torch.__version__.partition('+')[0]}; see table.py.\n\n"
    TABLE.write_text(head + sections(known), encoding="utf-8")
    OF_CHECKER.write_text(of_checker(known), encoding="utf-8")


if __name__ == "__main__":
    main()
