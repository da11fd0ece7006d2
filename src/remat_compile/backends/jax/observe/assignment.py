"""The buffer assignment of a compiled step, as XLA reports it.

JAX hands it out as a serialised `BufferAssignmentProto` (xla/service/hlo.proto). Four
fields of it are read here; the wire format of protocol buffers takes fewer lines than a
dependency on XLA's schema would.
"""

from __future__ import annotations

from collections.abc import Iterator

_ALLOCATIONS = 3  # BufferAssignmentProto.buffer_allocations
_SIZE, _IS_PARAMETER, _IS_RESULT, _ASSIGNED, _IS_TUPLE = 2, 5, 7, 9, 11  # BufferAllocationProto
_ASSIGNED_SIZE = 3  # BufferAllocationProto.Assigned


def scratch_bytes(assignment: bytes) -> int:
    """At most so many bytes of temporary values lie in the buffers of results.

    XLA uses the buffer of a result for other values until the result is computed, and does
    not count these among its temporary bytes. This is the sum, over the results, of the
    largest other value that their buffer ever holds: not all of it need be at one time.
    0 where XLA says nothing.
    """
    return sum(
        _largest_guest(allocation)
        for number, allocation in _fields(assignment)
        if number == _ALLOCATIONS
    )


def _largest_guest(allocation: int | bytes) -> int:
    plain: dict[int, int] = {}
    held: list[int] = []
    for number, value in _fields(allocation):
        if number == _ASSIGNED:
            held.append(next((_int(v) for n, v in _fields(value) if n == _ASSIGNED_SIZE), 0))
        elif isinstance(value, int):
            plain[number] = value
    if not plain.get(_IS_RESULT) or plain.get(_IS_PARAMETER) or plain.get(_IS_TUPLE):
        return 0
    held.sort(reverse=True)
    if held and held[0] == plain.get(_SIZE):
        del held[0]  # the result itself
    return max(held, default=0)


def _int(value: int | bytes) -> int:
    assert isinstance(value, int)
    return value


def _fields(message: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, nested messages as bytes."""
    assert isinstance(message, bytes)
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
                yield tag >> 3, value
            case 2:
                size, at = _varint(message, at)
                yield tag >> 3, message[at : at + size]
                at += size
            case 1:
                at += 8
            case 5:
                at += 4
            case other:
                raise ValueError(f"wire type {other} is none of a buffer assignment")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
