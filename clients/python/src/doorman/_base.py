"""What the cores share: times, requests, and the check of what servers send.

A core has no clock, no thread and no connection. Times inside of it are whole nanoseconds, so that
two ways to compute the same time give the same result.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

SECOND = 1_000_000_000
NEVER = 1 << 62
AMOUNT_MAX = 1e15
DURATION_MAX = 10**8 * SECOND
ID_BYTES_MAX = 256
REDIRECTS_MAX = 5
GRAINS = 4096  # limiters and servers count in 1/4096 of a unit


class InvalidResponse(ValueError):
    """A server has sent something that the protocol does not allow."""


class MessageRefused(InvalidResponse):
    """A server has answered INVALID_ARGUMENT: the message is wrong, and the server works."""


def nanoseconds(seconds: float) -> int:
    """Returns a duration in nanoseconds."""
    return round(seconds * SECOND)


def seconds(time: int) -> float:
    """Returns a duration in seconds."""
    return time / SECOND


@dataclass
class Request:
    """A request that a core wants to be sent: a POST of `message` to `address`/v1/`method`."""

    address: str
    method: str
    message: Dict[str, Any]
    number: int
    timeout: int  # nanoseconds; the core itself notices when it has passed
    lane: Optional[int] = None  # of a permit that may wait in the queue of a server
    sent_at: int = 0


def is_number(value: Any) -> "TypeGuard[float]":
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is larger than each float
        return False


def check_id(name: str, value: Any, empty: bool = False) -> str:
    """Returns a valid id. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{name}: must be a str")
    if not is_id(value) or not (value or empty):
        raise ValueError(f"{name}: must be {'0' if empty else '1'} to {ID_BYTES_MAX} bytes of "
                         "UTF-8 without control characters")
    return str(value)


def is_id(value: Any) -> bool:
    """Returns whether a value can be an id, or is empty."""
    if not isinstance(value, str) or any(c < " " or "\x7f" <= c <= "\x9f" for c in value):
        return False
    try:
        return len(value.encode("utf-8")) <= ID_BYTES_MAX
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False


def check_amount(name: str, value: Any, least: float = 0) -> float:
    """Returns a valid amount. Raises ValueError for anything else."""
    if not is_number(value) or not least <= value <= AMOUNT_MAX:
        raise ValueError(f"{name}: must be a number from {least:g} to {AMOUNT_MAX:g}")
    return float(value)


def check_amounts(name: str, values: Any) -> None:
    """Raises ValueError for anything but a list of valid amounts, or None."""
    if isinstance(values, str) or not isinstance(values, (Sequence, type(None))):
        raise ValueError(f"{name}: must be a list of amounts")
    for value in values or ():
        check_amount(name, value)


def check_duration(name: str, value: Any, least: float = 0) -> int:
    """Returns a duration in nanoseconds. Raises ValueError for anything but valid seconds."""
    if not is_number(value) or not least <= value <= 1e8:
        raise ValueError(f"{name}: must be from {least:g} to 1e8 seconds")
    return nanoseconds(value)


class Reader:
    """Reads an object of a response. Raises InvalidResponse if a field has a wrong type or value.
    Unknown fields are ignored."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise InvalidResponse(f"{path}: must be an object")
        self.value: Mapping[str, Any] = value
        self.path = path

    def fail(self, key: str, rule: str) -> InvalidResponse:
        return InvalidResponse(f"{self.path}.{key}: {rule}")

    def has(self, key: str) -> bool:
        return key in self.value

    def amount(self, key: str, default: Optional[float] = None) -> float:
        if key not in self.value and default is not None:
            return default
        value = self.value.get(key)
        if not is_number(value) or not 0 <= value <= AMOUNT_MAX:
            raise self.fail(key, "must be an amount")
        return float(value)

    def duration(self, key: str, default: Optional[int] = None) -> int:
        if key not in self.value and default is not None:
            return default
        value = self.value.get(key)
        if not is_number(value) or not 0 <= value <= 1e8:
            raise self.fail(key, "must be a number of seconds")
        return nanoseconds(value)

    def integer(self, key: str, most: int = 1 << 53) -> int:
        value = self.value.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.fail(key, "must be an integer")
        return value

    def text(self, key: str, default: Optional[str] = None) -> str:
        if key not in self.value and default is not None:
            return default
        value = self.value.get(key)
        if not isinstance(value, str):
            raise self.fail(key, "must be a string")
        return value

    def flag(self, key: str) -> bool:
        value = self.value.get(key, False)
        if not isinstance(value, bool):
            raise self.fail(key, "must be true or false")
        return value

    def list(self, key: str, length: Optional[int] = None) -> List[Any]:
        value = self.value.get(key)
        if not isinstance(value, list):
            raise self.fail(key, "must be a list")
        if length is not None and len(value) != length:
            raise self.fail(key, f"must have {length} elements")
        return value

    def object(self, key: str) -> "Reader":
        return Reader(self.value.get(key), f"{self.path}.{key}")


def read_body(body: Any, status: int) -> Reader:
    """Returns the content of a response. Raises InvalidResponse for an error of the server, and
    for a response of something else, such as the page of a proxy."""
    if not isinstance(body, dict):
        raise InvalidResponse(f"the status is {status}, and the body is no object of JSON. Is this "
                              "the HTTP port of a Doorman server?")
    reader = Reader(body, "response")
    if reader.has("error"):
        error = reader.object("error")
        code = error.text("code", "")
        kind = MessageRefused if code == "INVALID_ARGUMENT" else InvalidResponse
        raise kind(f"{code}: {error.text('message', '')}")
    if not 200 <= status < 300:
        raise InvalidResponse(f"the status is {status}")
    return reader


def is_tls(address: str) -> bool:
    return address[:6].lower() == "https:"


@dataclass
class Addresses:
    """The addresses of a node, and the master that one of them has named (K3)."""

    own: Sequence[str]
    index: int = 0
    redirect: str = ""
    redirects: int = field(default=0)  # in a row

    def __post_init__(self) -> None:
        self.own = [address.rstrip("/") for address in self.own]
        if not 1 <= len(self.own) <= 16:
            raise ValueError("addresses: must be 1 to 16")
        for address in self.own:
            check_address(address)

    @property
    def current(self) -> str:
        return self.redirect or self.own[self.index]

    def follow(self, master: Any) -> bool:
        """Goes to the master that a response has named. Returns False if it must not."""
        if not isinstance(master, str) or self.redirects >= REDIRECTS_MAX:
            return False
        try:
            check_address(master)
        except ValueError:
            return False
        if is_tls(self.current) and not is_tls(master):
            return False
        self.redirects += 1
        self.redirect = master.rstrip("/")
        return True

    def advance(self) -> None:
        """Goes to the next own address."""
        self.redirect = ""
        self.redirects = 0
        self.index = (self.index + 1) % len(self.own)


def check_address(address: Any) -> str:
    """Returns an address of HTTP. Raises ValueError for anything else."""
    text = check_id("address", address)
    scheme, _, rest = text.partition("://")
    if scheme.lower() not in ("http", "https") or not rest or " " in text:
        raise ValueError(f"address: must be like http://HOST:PORT or https://HOST:PORT, not {text}")
    if not _has_host(text):
        raise ValueError(f"address: must have a host, not {text}")
    port = rest.split("/")[0].rpartition("]")[2].rpartition(":")[2] if ":" in rest else "80"
    if rest.split("/")[0].rpartition("]")[2].count(":") and not (
            port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"address: the port must be a number from 1 to 65535, not {text}")
    return text


def _has_host(address: str) -> bool:
    try:
        return bool(urlsplit(address).hostname)
    except ValueError:  # a bracket is missing
        return False


def check_client_id(client_id: str) -> str:
    return check_id("client_id", client_id)
