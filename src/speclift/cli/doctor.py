"""doctor: what this machine has and how noisy it is, before a study is started on it."""

from __future__ import annotations

from typing import Annotated

import typer

from speclift.cli.screens import Json, screen, write_json


def doctor_command(
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the noise measurement: 1 s instead of 20 s.")
    ] = False,
    client: Annotated[
        bool, typer.Option("--client", help="Measure the load generator instead of the noise: 5 s.")
    ] = False,
    vllm_python: Annotated[
        str | None, typer.Option("--vllm-python", metavar="PATH", help="Python of the environment with vLLM.")
    ] = None,
    llama_server: Annotated[
        str | None, typer.Option("--llama-server", metavar="PATH", help="Your llama-server.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show engines, GPUs and models, and how noisy this machine is."""
    from speclift.cli.narration import Narrator
    from speclift.core.document import plain_object
    from speclift.verbs.doctor import diagnose
    from speclift.views.machine import machine_view

    facts = diagnose(
        Narrator(screen(stderr=True)),
        with_noise=not quick,
        with_client=client,
        vllm_python=vllm_python,
        llama_server=llama_server,
    )
    if as_json:
        write_json(plain_object(facts))
        return
    screen(stderr=False).print(machine_view(facts))
