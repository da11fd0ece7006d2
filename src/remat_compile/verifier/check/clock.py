"""End times of copies on links that slow each other down, and the time of the step."""

from .machine import Machine
from .sizes import Values


def time_ns(machine: Machine, size: Values) -> int:
    """`queues` has the copies of each direction that have not ended: aNode, latency left, and
    bytes left times 10^9 `whole`; `ends` when those that have did."""
    target, ends = machine.p.target, dict[str, int]()
    queues: dict[str, list[tuple[str, int, int]]] = {}
    out, back, latency = (target.get(word, 0) for word in ("d2h", "h2d", "copy_latency"))
    issue = target.get("copy_issue", 0)
    rates, whole = {"offload": out, "prefetch": back}, max(1, out + back)
    both = min(target.get("both", whole), whole) if out and back else whole
    now = clock = cpu = 0
    for (_, what, a), took_ns in zip(machine.p.steps, machine.times_ns, strict=True):
        if what == "host":
            cpu = max(cpu, now) + (own := machine.p.nodes[a]).host_ns
            old = own.takes_over(reads := machine.p.reads(own))
            ends |= dict.fromkeys({*reads, *own.results} - {*old}, cpu)
            continue
        now += took_ns + (issue if what in rates else 0)
        while queues and ((flying := what == "wait" and a not in ends) or clock < now):
            share = both if [q[0][1] for q in queues.values()] == [0, 0] else whole
            speed = {w: rates[w] * share for w in queues}
            left = [q[0][1] or -(-q[0][2] // max(1, speed[w])) for w, q in queues.items()]
            clock += (step := min(left if flying else [*left, now - clock]))
            for w, queue in queues.items():
                copied, wait, work = queue[0]
                queue[0] = copied, max(0, wait - step), work - (0 if wait else step * speed[w])
                while queue and not queue[0][1] and queue[0][2] <= 0:
                    ends[queue.pop(0)[0]] = clock
            queues = {w: queue for w, queue in queues.items() if queue}
        clock = max(clock, now)
        if what == "wait":
            now = max(now, ends.pop(a))
        elif what in rates:
            work = size[a] * 10**9 * whole if rates[what] else 0
            queues.setdefault(what, []).append((a, latency, work))
    return now
