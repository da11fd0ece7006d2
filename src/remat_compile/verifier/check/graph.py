"""The rules of graphs and bindings of `spec/grammar.md`, on which `spec/semantics.md` rests."""

from .packs import keeps_pairs
from .read import CALLERS, Program, need

KEPT = ("output", "param_grad", "updated")
HOMES = ("param", "buffer", "opt_state", "param_grad")
PHASES = ("fwd", "loss", "bwd", "opt")
WRITERS = {"act": "fwd", "phantom": "fwd", "pending": "fwd", "tangent": "loss", "grad": "bwd"}
WRITERS |= {"param_grad": "bwd", "output": "fwd loss bwd", "updated": "opt"}
BOUND = {  # what is bound, and what its second name may be
    "arg": (("input",), ("output", *CALLERS)),
    "param": (("param",), ("param_grad",)),
    "buffer": (CALLERS, ("pending",)),
    "result": (("output", *CALLERS), ("tangent", "output")),
}


def keeps_rules(p: Program) -> None:
    """Raises `Wrong` where a rule is broken."""
    for kind, a, b in p.bound:
        firsts, seconds = BOUND[kind]
        need(p.kind[a] in firsts and (not b or p.kind[b] in seconds), "cannot bind", a, b)
    fixed = {a for kind, a, update in p.bound if kind == "result" or (kind == "buffer" and update)}
    for a in p.homes:
        need(p.kind[a] in HOMES and a not in fixed, a, "cannot be on the host between two steps")
    there = {a for a, kind in p.kind.items() if kind in CALLERS}
    ended, phase = set[str](), "fwd"
    for name, call in p.nodes.items():
        form, reads, made = call.replay or call, p.reads(call), call.made()
        written = [*made, *filter(None, [call.token])]
        need(PHASES.index(phase) <= PHASES.index(call.phase), name, "comes after a later phase")
        early = {*reads, *p.reads(form)} - there | {*reads, *p.reads(form)} & ended
        need(not early, name, "reads what is not there:", *early)
        need(all(call.phase in WRITERS.get(p.kind[a], "") for a in made), name, "writes no such")
        need(not call.token or p.kind[call.token] == "rng", name, "has no random state")
        need(len({*written} - there) == len(written), name, "writes what another writes")
        need({*form.made()} <= {*made} and len({*form.made()}) == len(form.made()), name, "again")
        places = [a in ("_", *call.results[j : j + 1]) for j, a in enumerate(form.results)]
        need(all(places) or not form.same(call), name, "replays results in other places")
        need((call.phase == "loss") == (call.operator == "loss"), name, "is the loss, or is not")
        if call.phase == "loss":
            ends = {a for kind, a, _ in p.bound if kind == "result"}
            ends |= {a for a, kind in p.kind.items() if kind == "pending"}
            need(ends <= {*reads}, "the loss does not read all results and new contents")
        if call.operator == "accumulate":
            alone = not call.token and not call.replay and len(made) == 1 and call.phase == "bwd"
            need(alone and len(call.arguments) == 3 and call.arguments[1] == ",", name)
            need(reads[0] != reads[1] and p.kind[reads[0]] == "grad", name, "adds to no gradient")
            ended.add(reads[0])
        if call.operator == "update" or call.phase == "opt":
            plain = not call.token and not call.replay and 0 < len(made) == len(call.results)
            need(plain and call.operator == "update" and call.phase == "opt", name, "no update")
            starts = call.arguments[: 2 * len(made) : 2]
            own = {a for a in starts if p.kind.get(a) in ("param", "opt_state")}
            need(len(own) == len(made), name, "does not update storages of the caller, each once")
            need({p.kind[a] for a in made} == {"updated"}, name, "makes nothing updated")
            ended |= own
        there |= {*written}
        phase = call.phase
    need(there == p.kind.keys(), "somebody writes nothing:", *(p.kind.keys() - there))
    keeps_pairs(p)
    need([call.phase for call in p.nodes.values()].count("loss") == 1, "there is not one loss")
