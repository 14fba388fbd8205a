"""A server that the user starts with `docker run`, launched the same way at an address of ours. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speclift.core.address import HIDDEN

# Where the server listens inside its container.
INNER_PORT = 8000
# A container of ours ends with its study, has no terminal, and no name that could be taken.
DROPPED = ("-d", "--detach", "-it", "-ti", "-i", "-t", "--interactive", "--tty", "--rm")
DROPPED_WITH_VALUE = ("--name", "--restart", "-p", "--publish", "--cidfile", "--network-alias")
NETWORK = ("--network", "--net")


def container_start(start: Sequence[str], *, port: int) -> tuple[str, ...]:
    """`docker run … image` for one launch; the server inside listens as `listening` says."""
    program, run, *options = start[:-1]
    published = () if shares_network(start) else ("-p", f"127.0.0.1:{port}:{INNER_PORT}")
    return (program, run, "--rm", *published, *_kept(options), start[-1])


def listening(start: Sequence[str], *, port: int) -> tuple[str, ...]:
    if shares_network(start):
        return ("--host", "127.0.0.1", "--port", str(port))
    return ("--host", "0.0.0.0", "--port", str(INNER_PORT))


def shares_network(start: Sequence[str]) -> bool:
    """Whether it runs in the network of the machine, where ports are not published."""
    pairs = zip(start, [*start[1:], ""], strict=True)
    return any(
        word in [f"{flag}=host" for flag in NETWORK] or (word in NETWORK and value == "host")
        for word, value in pairs
    )


def _kept(options: Sequence[str]) -> Iterator[str]:
    words = iter(options)
    for word in words:
        name, equals, _ = word.partition("=")
        if word in DROPPED:
            continue
        if name in DROPPED_WITH_VALUE:
            if not equals:
                next(words, None)
            continue
        # A secret is handed on from the environment of this process, by its name alone.
        yield word.removesuffix(f"={HIDDEN}")
