"""Run in a process of its own: does the argument parser inside xllamacpp take these commands?

xllamacpp has no name for llama.cpp's parser in Python, but its library exports the symbol. It fills the C++ struct
that a CommonParams object holds, whose first field (n_predict) tells where it begins. Reads a JSON list of argument
lists; writes a list of {"ok": …, "error": …, "types": […], "n_max": …, "draft": …, "size_m": …}.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import tempfile
from typing import Any

import xllamacpp
from xllamacpp import xllamacpp as library

PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
MARK = 0x5EC11F7


def main() -> None:
    commands = json.load(sys.stdin)
    parse = getattr(ctypes.CDLL(library.__file__), PARSE)
    parse.restype = ctypes.c_bool
    # The number of llama-server in llama.cpp's list of programs moves between builds; only it has --metrics.
    server = next(number for number in range(32) if asked(parse, ["x", "--metrics", "--slots"], number)["ok"])
    answers = [asked(parse, ["llama-server", *arguments], server) for arguments in commands]
    json.dump(answers, sys.stdout)


def asked(parse: Any, arguments: list[str], program: int) -> dict[str, Any]:
    params = xllamacpp.CommonParams()
    words = [word.encode() for word in arguments]
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    with tempfile.TemporaryFile() as said:
        screens = [os.dup(1), os.dup(2)]
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        ok = parse(len(words), argv, ctypes.c_void_p(id(params) + offset(params)), program, None)
        ctypes.CDLL(None).fflush(None)
        os.dup2(screens[0], 1)
        os.dup2(screens[1], 2)
        for screen in screens:
            os.close(screen)
        said.seek(0)
        error = said.read().decode(errors="replace")
    speculative = params.speculative
    names = [kind.name.removeprefix("COMMON_SPECULATIVE_TYPE_") for kind in speculative.types]
    return {
        "ok": bool(ok),
        "error": error[:300],
        "types": [
            name for name in names if name != "NONE"
        ],  # the default stays in front of what is asked for
        "n_max": speculative.draft.n_max,
        "n_min": speculative.draft.n_min,
        "draft": speculative.draft.mparams.path,
        "size_m": speculative.ngram_simple.size_m,
        "size_n": speculative.ngram_simple.size_n,
        "model": params.model.path,
    }


def offset(params: Any) -> int:
    """Where the struct begins inside the Python object."""
    before, params.n_predict = params.n_predict, MARK
    memory = ctypes.string_at(id(params), type(params).__basicsize__)
    params.n_predict = before
    found = memory.find(struct.pack("<i", MARK))
    if found < 0 or memory.count(struct.pack("<i", MARK)) != 1:
        raise SystemExit("the struct was not found inside CommonParams")
    return found


if __name__ == "__main__":
    main()
