"""Are these bytes whole chunks of a body, and what is in them? Pure.

A token is mostly one read and one chunk, and what a server wrote can be passed on as it is. Sizes as servers write them
are known by heart; whatever is written otherwise, is longer or is not whole is read with more care elsewhere
(client/wire.py).
"""

from __future__ import annotations

from collections.abc import Callable

from speclift.core.units import Seconds

# A token's chunk has some 250 bytes.
CHUNK_BYTES_MAX = 4095
# Of one read: what is passed on unread is kept for a while, so a server that floods is read with care.
PASSED_BYTES_MAX = 4096
_SIZES = {b"%x" % size: size for size in range(1, CHUNK_BYTES_MAX + 1)}
_SIZE_DIGITS = 3


def are_whole_chunks(data: bytes) -> bool:
    """From the first byte to the last, and none of them the last of its body."""
    place, length = 0, len(data)
    while place < length:
        edge = data.find(b"\r\n", place, place + _SIZE_DIGITS + 2)
        # Without an edge, -1 would be one, and what follows it may lie behind: a size cut in two would never end.
        size = _SIZES.get(data[place:edge]) if edge > place else None
        if size is None:
            return False
        place = edge + size + 4
        if data[place - 2 : place] != b"\r\n":
            return False
    return place == length


def passing(
    write: Callable[[bytes], None],
    later: tuple[list[Seconds], list[bytes]],
    shorten: Callable[[], None],
    *,
    kept_max: int,
    clock: Callable[[], Seconds],
) -> Callable[[bytes], bool]:
    """The way of every token, so one call and as few more as can be: whole chunks are written as they came and noted in
    `later` with their time, which is shortened where it has come to `kept_max`. What this makes says whether the bytes
    were such chunks; of others it does nothing. Times and chunks stand in a list each: a pair for every token would be
    so much more for the garbage collector to look through."""
    times, kept = later

    def pass_on(data: bytes) -> bool:
        edge = data.find(b"\r\n", 0, _SIZE_DIGITS + 2)
        size = _SIZES.get(data[:edge])
        if size is None or len(data) > PASSED_BYTES_MAX:
            return False
        # One chunk, most of the time; where the loop is busy, several.
        if (len(data) != edge + size + 4 or data[-2:] != b"\r\n") and not are_whole_chunks(data):
            return False
        times.append(clock())
        kept.append(data)
        if len(kept) >= kept_max:
            shorten()
        write(data)
        return True

    return pass_on


def body_of(chunks: bytes) -> bytes:
    """What whole chunks carry."""
    parts, place = [], 0
    while place < len(chunks):
        edge = chunks.index(b"\r\n", place)
        end = edge + 2 + _SIZES[chunks[place:edge]]
        parts.append(chunks[edge + 2 : end])
        place = end + 2
    return b"".join(parts)
