"""A fake server for the length of a block: `with running("k=4", "acceptance=0.8") as url`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from speclift.testing.fake_truth import parse_truth


@contextmanager
def running(*truth: str) -> Iterator[str]:
    """Its address on this machine. In a process of its own: what it times must not wait for who asks."""
    parse_truth(truth)  # a wrong word is said here, and not by a process that ends
    words = [word for pair in truth for word in ("--truth", pair)]
    # It ends with its standard input too, should this process be killed.
    command = [sys.executable, "-m", "speclift.testing.fake_server", "--exit-on-eof", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise RuntimeError(f"the fake server ended before it listened (code {server.wait()})")
            yield str(json.loads(line)["url"])
        finally:
            server.terminate()
