"""Run inside vLLM's environment: which of these does its parser take, and which its config classes?

Reads a JSON list of {"arguments": […]}, {"yaml": "…"}, {"python": "…"} or {"list_flags": true}; writes a list of
{"error": null or "…", "config": {…}}.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    commands = json.load(sys.stdin)
    # vLLM prints as it is imported.
    answers, sys.stdout = sys.stdout, sys.stderr
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    found = []
    for command in commands:
        try:
            found.append(accept(command, parser, EngineArgs))
        except SystemExit as error:
            found.append({"error": f"the parser exits with {error.code}"})
        except Exception as error:  # noqa: BLE001 whatever vLLM raises is the answer
            found.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(found, answers)


def accept(command: dict[str, Any], parser: Any, engine_args: Any) -> dict[str, Any]:
    if "list_flags" in command:
        actions = [action for action in parser._actions if action.option_strings]
        return {
            "flags": [name for action in actions for name in action.option_strings],
            "switches": [name for action in actions if action.nargs == 0 for name in action.option_strings],
        }
    if "python" in command:
        engine = engine_args(**keywords_of(command["python"]))
    else:
        parsed = parse(command, parser)
        # What `vllm serve MODEL` does with the word without a flag.
        parsed.model = getattr(parsed, "model_tag", None) or parsed.model
        engine = engine_args.from_cli_args(parsed)
    config = engine.create_engine_config().speculative_config
    if config is None:
        return {"error": None, "config": None}
    return {
        "error": None,
        "config": {
            "method": config.method,
            "k": config.num_speculative_tokens,
            "schedule": config.num_speculative_tokens_per_batch_size,
        },
    }


def parse(command: dict[str, Any], parser: Any) -> Any:
    if "arguments" in command:
        return parser.parse_args(command["arguments"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(command["yaml"], encoding="utf-8")
        return parser.parse_args(["--config", str(path)])


def keywords_of(source: str) -> dict[str, Any]:
    """The keywords of the one call of LLM(...) in the program."""
    call = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    main()
