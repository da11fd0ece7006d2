"""The frame that makes a module of PyTorch code a script: it loads its tensors, runs a step, looks
at it."""

from __future__ import annotations

from ....device.devices import generator_module
from ....ir.expr import evaluate
from ....ir.program import Program
from ....ir.schedule import Schedule
from ....ir.semantics.simulate import simulate
from ....operators.aten import torch_dtype
from ...python.layout import one_a_line
from ...python.quote import literal
from ..runtime.arena import host_layout
from .interface import default_interface

_IMPORTS = "import sys\nfrom pathlib import Path\n\nimport torch\n"
_COPIES_IMPORT = "from remat_compile.backends.torch.runtime import single_call\n"
_CODECS_IMPORT = "import remat_compile.operators.codecs\n"

_SCRIPT = '''
def load(path):
    """Tensors by kind and name, from a file that `torch.save` wrote: a model's `state_dict`,
    or {"param": {name: tensor}, "arg": {"0": tensor}, ...} of the kinds in the tables above."""
    stored = torch.load(path, map_location=DEVICE, weights_only=True)
    if all(isinstance(tensors, dict) for tensors in stored.values()):
        return stored
    return {"param": stored, "buffer": stored}


def tensor(stored, kind, name, dtype, shape):
    """What is stored under a name, or a tensor that is made up: zeros, or between 0 and 1."""
    dtype = getattr(torch, dtype)
    if name in stored.get(kind, {}):
        value = stored[kind][name].detach().clone()
        if (value.dtype, tuple(value.shape)) != (dtype, shape):
            wanted = f"{dtype}{list(shape)}"
            raise SystemExit(f"{kind} {name} is {value.dtype}{list(value.shape)}, not {wanted}")
        return value
    if kind == "const":
        raise SystemExit(f"the file lacks {kind} {name}, which the model makes itself")
    make = torch.rand if dtype.is_floating_point else torch.zeros
    return make(shape, dtype=dtype, device=DEVICE)


def step(args, constants, tangents):
    """One training step: outputs and gradients. `args` is emptied, its buffers are updated;
    `tangents` is a function of the outputs."""
    buffers = {row[1]: x for row, x in zip(INPUTS, args) if row[0] == "buffer"}
    with torch.no_grad():
        made = list(forward(args, constants))
        outputs, saved = made[: len(OUTPUTS)], made[len(OUTPUTS) :]
        del made
        for i, (kind, name) in enumerate(OUTPUTS):
            if kind == "new_buffer":
                outputs[i] = buffers[name].copy_(outputs[i])
        first = len(saved) - SIZES
        given = [*saved[first:], *saved[:first], *tangents(outputs)]
        del saved
        return outputs, backward(given, constants)


def measured(run):
    """What `run` gives, and the most bytes that it held over those there before."""
    if DEVICE.startswith("cuda"):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return run(), torch.cuda.max_memory_allocated() - before
    import os

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no lines of the profiler's own
    with torch.autograd.profiler.profile(use_cpu=True, profile_memory=True) as profiler:
        result = run()
    changes, events = [], list(profiler.kineto_results.experimental_event_tree())
    while events:
        event = events.pop()
        events += event.children
        if event.tag == torch._C._profiler._EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
    now = peak = 0
    for _, size in sorted(changes):
        now += size
        peak = max(peak, now)
    return result, peak


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".pt")
    stored = load(path) if len(sys.argv) > 1 or path.exists() else {}
    torch.manual_seed(0)
    args = [tensor(stored, *row) for row in INPUTS]
    constants = tuple(tensor(stored, *row) for row in CONSTANTS)
    held = (*args, *constants)  # the caller's, for as long as the step runs
    given = stored.get("tangent", {})

    def tangents(outputs):
        return [given.get(name, torch.ones_like(outputs[i])) for name, i in TANGENTS]

    torch.manual_seed(0)
    (outputs, grads), over = measured(lambda: step(args, constants, tangents))
    print(f"peak: {sum(x.nbytes for x in held) + over} bytes measured, {PLANNED_PEAK} planned")
    wrong, compared = [], 0
    for (kind, name), value in zip((*OUTPUTS, *GRADS), (*outputs, *grads)):
        if value is None:
            continue
        if not bool(torch.isfinite(value).all()):
            wrong.append(f"{kind} {name} is not finite")
        wanted = stored.get(kind, {}).get(name)
        if kind in REFERENCES and wanted is not None:
            compared += 1
            if not torch.equal(value, wanted):
                wrong.append(f"{kind} {name} is not as stored")
    for what in wrong:
        print(what)
    print(f"outputs and gradients: {len(wrong)} wrong, {compared} compared with {path.name}")
    if not compared:
        print(f"nothing to compare: remat-compile run, asked for values, writes {path.name}")
    return 0 if compared and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
'''
_BEFORE_STEP = '    given = stored.get("tangent", {})\n'
_BEGIN_COPIES = "    args.append(single_call(DEVICE, HOST_BYTES, HOST_SLOTS))\n"


def script_imports(*, copies: bool, codecs: bool) -> str:
    """The same in every module that copies to the host, or has packed values, or does not."""
    ours = _CODECS_IMPORT * codecs + _COPIES_IMPORT * copies
    return _IMPORTS + ("\n" + ours if ours else "")


def script_text(*, copies: bool) -> str:
    """Likewise what makes a module a script."""
    return _SCRIPT.replace(_BEFORE_STEP, _BEGIN_COPIES + _BEFORE_STEP) if copies else _SCRIPT


_REPLAY = '''

def replay(state, op, *args, **kwargs):
    """Runs a random operator again on the generator state of its first execution."""
    now = {module}.get_rng_state()
    {module}.set_rng_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        {module}.set_rng_state(now)
'''


def replay_helper(program: Program) -> str:
    """The function that runs a random operator again, on the program's device."""
    return _REPLAY.format(module=generator_module(program.header.device))


TABLES = (
    *("DEVICE", "PLANNED_PEAK", "SIZES", "INPUTS", "CONSTANTS", "OUTPUTS", "TANGENTS", "GRADS"),
    *("REFERENCES", "HOST_BYTES", "HOST_SLOTS"),
)
SCRIPT_NAMES = (
    *("sys", "Path", "single_call", "load", "tensor", "step", "measured", "main"),
    *TABLES,
)
"""Names that the script binds in its module."""

_COMMENTS = {
    "PLANNED_PEAK": "bytes, those of the caller included",
    "SIZES": "dynamic dimensions that the forward hands to the backward",
    "INPUTS": "what `forward` takes: kind, name, dtype, shape",
    "OUTPUTS": "what it gives first, then what `backward` takes first",
    "TANGENTS": "what `backward` takes last: name, and to which output it belongs",
    "GRADS": "what `backward` gives",
    "HOST_BYTES": "on the host, for copies",
    "HOST_SLOTS": "per tensor and copy of it: pieces, each an address and its bytes",
}


def script_tables(program: Program, schedule: Schedule) -> dict[str, object]:
    """The tables of a program's script, at the sample of its dynamic dimensions."""
    binding, graph = program.binding, program.graph
    names = {p.name: ("param", p.names[0]) for p in binding.params}
    names |= {b.name: ("buffer", b.names[0]) for b in binding.buffers}
    names |= {a.name: ("arg", str(i)) for i, a in enumerate(binding.arguments)}
    names |= {a.name: ("const", a.name) for a in graph.anodes if a.kind == "const"}

    def row(name: str) -> tuple[object, ...]:
        node = graph.anode[name]
        dtype = str(torch_dtype(node.dtype)).removeprefix("torch.")
        shape = tuple(evaluate(extent, program.sample) for extent in node.shape)
        return (*names.get(name, ("const", name)), dtype, shape)

    updates = tuple(("new_buffer", b.names[0]) for b in binding.buffers if b.update is not None)
    results = tuple(("output", str(i)) for i, _ in enumerate(binding.results))
    host = {}
    if schedule.has_copies:
        layout = host_layout(program, schedule)
        host = {"HOST_BYTES": layout.size_bytes, "HOST_SLOTS": tuple(layout.slots.items())}
    return host | {
        "DEVICE": program.header.device,
        "PLANNED_PEAK": simulate(program, schedule).peak_bytes,
        "SIZES": len(program.symbols),
        "INPUTS": tuple(row(name) for name in default_interface(program).inputs if name),
        "CONSTANTS": tuple(row(a.name) for a in graph.anodes if a.kind == "const"),
        "OUTPUTS": updates + results,
        "TANGENTS": tuple(
            (str(i), len(updates) + i)
            for i, r in enumerate(binding.results)
            if r.tangent is not None
        ),
        "GRADS": (
            *(("grad", p.names[0]) for p in binding.params),
            *(("input_grad", str(i)) for i in range(len(binding.arguments))),
        ),
        "REFERENCES": ("output", "new_buffer", "grad", "input_grad"),
    }


def tables_text(tables: dict[str, object]) -> str:
    """The tables as assignments of literals, one row a line."""
    lines: list[str] = []
    for name, value in tables.items():
        if name in _COMMENTS:
            lines.append(f"# {_COMMENTS[name]}")
        if isinstance(value, tuple):
            lines += one_a_line(f"{name} = (", [f"{_text(row)}," for row in value], ")")
        else:
            lines.append(f"{name} = {_text(value)}")
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        comma = "," if len(value) == 1 else ""
        return f"({', '.join(map(_text, value))}{comma})"
    return literal(value) if isinstance(value, str) else repr(value)
