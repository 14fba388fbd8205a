"""A server's address as a user types it: what may be shown and stored of it, and the secrets in it.

`concealed` is the one place where such secrets enter: it gives the address without them, and that alone travels
through studies, reports and messages. `address_of` puts them back for whoever opens a connection. They are known to
this process only, never stored.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit

from speclift.core.errors import UsageError

HIDDEN = "***"
DEFAULT_PORTS = {"http": 80, "https": 443}
EXAMPLE = "such as http://127.0.0.1:8000"
# Settings in a query that are no secrets. Anything else may be one, whatever its name.
PLAIN_SETTINGS = frozenset({"api-version", "format", "match[]", "module", "name", "name[]", "target"})
# Shorter ones would blot out ordinary words in what servers say.
BLOTTED_CHARACTERS_MIN = 4
SHOWN_CHARACTERS = 200

# The base path of an address and its user, password and query as they were typed, by what is shown of all three.
_known: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
_secrets: set[str] = set()
# Addresses within words of a command, as typed, by what is shown of them.
_typed: dict[str, str] = {}
# A word that is one, or a flag with one; and any within a text.
_WHOLE = re.compile(r"(--[\w-]+=|)([A-Za-z][\w+.-]*://\S*)")
_URL = re.compile(r"""[A-Za-z][\w+.-]*://[^\s"'<>|]*""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to connect and what to ask for there. Holds secrets: never to be shown."""

    scheme: str
    host: str
    port: int
    path: str
    query: str
    # The value of the header for a user and password in the address.
    authorization: str | None

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def host_field(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def has_secret(self) -> bool:
        return self.authorization is not None or bool(_secret_values(self.query))

    def target(self, path: str = "") -> str:
        """The path and query of a request line."""
        whole = f"{self.path.rstrip('/') if path else self.path}{path}" or "/"
        return f"{whole}?{self.query}" if self.query else whole


def concealed(url: str, *, what: str = "the address", shows_path: bool = True) -> str:
    """The address without its secrets, which this process remembers; UsageError where it is no address."""
    split = _checked(url, what=what, shows_path=shows_path)
    public_url = redacted(url)
    if HIDDEN in url or public_url == url:
        return url
    public = urlsplit(public_url)
    user = split.netloc.rpartition("@")[0]
    entries = _known.setdefault((public.scheme, public.netloc, public.query), [])
    path = base_of(split.path)
    entries[:] = [*(entry for entry in entries if entry[0] != path), (path, user, split.query)]
    for secret in (split.password or split.username or "", *_secret_values(split.query)):
        for form in (secret, unquote(secret), unquote_plus(secret)):
            remember(form)
    return public_url


def address_of(url: str) -> Address:
    """With the secrets that `concealed` took out of it."""
    split = _checked(url, what="the address")
    user, query = split.netloc.rpartition("@")[0], split.query
    if HIDDEN in user or HIDDEN in query:
        user, query = _recalled(split)
    authorization = None
    if user:
        name, _, password = user.partition(":")
        pair = f"{unquote(name)}:{unquote(password)}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    return Address(
        scheme=split.scheme,
        host=_host_of(split),
        port=split.port or DEFAULT_PORTS[split.scheme],
        path=split.path,
        query=query,
        authorization=authorization,
    )


def joined(base: str, path: str) -> str:
    """The address of a page of a server; a query stays behind the path."""
    place, mark, query = base.partition("?")
    return f"{place}{path}{mark}{query}"


def base_of(url: str) -> str:
    """Without the /v1 that OpenAI's clients want at the end."""
    place, mark, query = url.partition("?")
    return place.rstrip("/").removesuffix("/v1") + mark + query


def redacted(url: str) -> str:
    """What may be shown of anything that was meant as an address."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    # A password may hold what should have been written otherwise, even a question mark: the last @ ends it.
    user, at, rest = rest.rpartition("@")
    name, colon, _ = user.partition(":")
    shown_user = f"{name}:{HIDDEN}@" if colon and name else f"{HIDDEN}@" if at else ""
    place, mark, query = rest.partition("?")
    return f"{scheme}{separator}{shown_user}{place}{mark}{_redacted_query(query)}"


def shown(url: str) -> str:
    """For a message: a server may have chosen it, at any length."""
    public = redacted(url)
    return public if len(public) <= SHOWN_CHARACTERS else public[:SHOWN_CHARACTERS] + "…"


def concealed_within(text: str) -> str:
    """The text with every address in it redacted; this process remembers how each was typed."""
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return f"{whole[1]}{_concealed_url(whole[2])}"
    return _URL.sub(lambda match: _concealed_url(match[0]), text) if "://" in text else text


def revealed_within(text: str) -> str:
    """The text with the addresses that `concealed_within` redacted, as they were typed."""
    for public in sorted(_typed, key=len, reverse=True):
        text = text.replace(public, _typed[public])
    return text


def _concealed_url(url: str) -> str:
    public = redacted(url)
    if public != url and HIDDEN not in url:
        _typed[public] = url
        _, _, password = url.partition("://")[2].rpartition("@")[0].partition(":")
        for secret in (password, *_secret_values(url.partition("?")[2])):
            remember(secret)
    return public


def without_secrets(text: str) -> str:
    """What a server said, where it repeats a secret that was sent to it."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def remember(secret: str) -> None:
    """Never to be shown, should a server repeat it."""
    if len(secret) >= BLOTTED_CHARACTERS_MIN and secret != HIDDEN:
        _secrets.add(secret)


def usable_key(key: str, *, where: str) -> str:
    """The key itself; UsageError, without showing it, where no header could carry it."""
    odd = [place for place, character in enumerate(key) if not "!" <= character <= "~"]
    if odd:
        at_end = odd[0] == len(key.rstrip())
        raise UsageError(
            f"the key in {where} has an invalid character "
            + (
                "at its end: a line break or a space" if at_end else f"at position {odd[0] + 1} of {len(key)}"
            ),
            hint=f"remove line breaks: export {where}=$(tr -d '\\r\\n' < FILE)",
        )
    remember(key)
    return key


def _host_of(split: SplitResult) -> str:
    host = split.hostname or ""
    return host if host.isascii() else host.encode("idna").decode("ascii")


def _checked(url: str, *, what: str, shows_path: bool = True) -> SplitResult:
    seen = redacted(url) if shows_path else _host_alone(url)
    complaint = f"{what} is not a server's address: {ascii(seen)[:SHOWN_CHARACTERS]}"
    if any(character <= " " or character == "\x7f" for character in url):
        raise UsageError(f"{complaint} (a space or a control character)", hint=EXAMPLE)
    try:
        split = urlsplit(url)
        port = split.port
        host = split.hostname or ""
        host.encode("ascii" if ":" in host else "idna")
    except ValueError as error:
        # Python's own words may repeat a password that was taken for a port.
        reason = (
            "the port is not a number from 1 to 65535" if "ort" in str(error) else "the host cannot be read"
        )
        raise UsageError(f"{complaint} ({reason})", hint=EXAMPLE) from None
    if split.scheme not in DEFAULT_PORTS or not host:
        raise UsageError(complaint, hint=f"it must begin with http:// or https://, {EXAMPLE}")
    if port == 0:
        raise UsageError(f"{complaint} (the port is not a number from 1 to 65535)", hint=EXAMPLE)
    rest = f"{split.path}{split.query}"
    if "#" in url or "@" in rest or not rest.isascii():
        raise UsageError(
            f"{complaint} (# or @ after the host, or a letter outside ASCII)",
            hint="write # as %23, @ as %40; in a user or password also / as %2F and ? as %3F",
        )
    return split


def _host_alone(url: str) -> str:
    """Empty where no host can be told from what may be a secret."""
    place = re.match(r"\w+://[\w.:\[\]-]+", redacted(url))
    return f"{place[0]}/..." if place else ""


def _recalled(split: SplitResult) -> tuple[str, str]:
    """User and query as they were typed, of the address with the longest path that this one begins with."""
    entries = _known.get((split.scheme, split.netloc, split.query), [])
    fitting = [entry for entry in entries if split.path.startswith(entry[0])]
    if not fitting:
        raise UsageError(
            f"the secret in {shown(split.geturl())} is unknown: a study stores no secrets",
            hint="give the same address with its secret again, with --resume",
        )
    _, user, query = max(fitting, key=lambda entry: len(entry[0]))
    return user, query


def _redacted_query(query: str) -> str:
    return "&".join(_with_hidden(part) for part in query.split("&"))


def _with_hidden(part: str) -> str:
    """One setting of a query; what is not name=value may be the secret itself."""
    name, equals, _ = part.partition("=")
    if not _may_be_secret(part):
        return part
    return f"{name}={HIDDEN}" if equals else HIDDEN


def _secret_values(query: str) -> tuple[str, ...]:
    """As they were typed."""
    parts = (part for part in query.split("&") if _may_be_secret(part))
    return tuple(value if equals else name for name, equals, value in (part.partition("=") for part in parts))


def _may_be_secret(part: str) -> bool:
    name, equals, value = part.partition("=")
    return bool(value if equals else name) and unquote(name).lower() not in PLAIN_SETTINGS
