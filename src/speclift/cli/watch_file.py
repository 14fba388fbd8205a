"""watch.toml: the servers to watch, and what watch's flags say, said in a file. Flags win over it."""

from __future__ import annotations

from pathlib import Path

from speclift.cli.options import Flags
from speclift.cli.study_file import defaults_of, read_toml, settings_of
from speclift.core.errors import UsageError
from speclift.verbs.watch_plan import WatchTarget

URLS, SERVER = "urls", "server"
SERVER_KEYS = {"url", "api_key_env"}
EXAMPLE = 'urls = ["http://127.0.0.1:8000"], or [[server]] with url = "..." and api_key_env = "..."'


def read_watch_file(path: Path, flags: Flags) -> tuple[tuple[WatchTarget, ...], dict[str, object]]:
    """The servers that it names, and values by field. UsageError where anything in it is wrong."""
    table, parameters = read_toml(path), flags.parameters()
    settings = settings_of(parameters)
    options: dict[str, object] = {parameter.name: None for parameter in parameters}
    paths = {setting.parameter for setting in settings.values() if setting.type is Path}
    for name, value in defaults_of(table, settings, path, more=(URLS, SERVER)).items():
        options[name] = Path(str(value)) if name in paths else value
    targets = (*_urls(table.get(URLS, []), path), *_servers(table.get(SERVER, []), path))
    return targets, flags.given(options)


def _urls(found: object, path: Path) -> list[WatchTarget]:
    if not isinstance(found, list):
        raise UsageError(f"{path}: '{URLS}' takes a list of addresses", hint=EXAMPLE)
    return [WatchTarget(url=_text(url, f"{path}: '{URLS}'")) for url in found]


def _servers(found: object, path: Path) -> list[WatchTarget]:
    where = f"{path}: [[{SERVER}]]"
    if not isinstance(found, list):
        raise UsageError(f"{where} is written with two brackets", hint=EXAMPLE)
    targets = []
    for entry in found:
        if not isinstance(entry, dict) or "url" not in entry or entry.keys() - SERVER_KEYS:
            raise UsageError(f"{where} takes url and api_key_env", hint=EXAMPLE)
        key = entry.get("api_key_env")
        targets.append(
            WatchTarget(
                url=_text(entry["url"], where), api_key_env=None if key is None else _text(key, where)
            )
        )
    return targets


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where} takes text, saw {type(value).__name__}", hint=EXAMPLE)
    return value
