"""What the middleware for WSGI and ASGI share: the headers of a decision, and the response to a
request that is refused."""
from __future__ import annotations

import hashlib
import json
import math
from typing import List, Optional, Tuple

from ._base import is_id
from ._calls import Acquired

INTEGER_MAX = 999_999_999_999_999  # of a structured field (RFC 9651, 3.3.1)
REASONS = {429: "Too Many Requests", 403: "Forbidden", 503: "Service Unavailable"}


def _integer(units: float) -> int:
    return int(min(max(units, 0), INTEGER_MAX))


def _name(text: str) -> str:
    """Returns a name as a structured field has it: only printable characters of ASCII."""
    out = ""
    for byte in text.encode():
        char = chr(byte)
        if char in '"\\':
            out += "\\" + char
        else:
            out += char if " " <= char <= "~" else f"%{byte:02X}"
    return f'"{out}"'


def key_of(key: Optional[str]) -> str:
    """Returns the key of a request; None: it has none. One that a permit cannot have is replaced by
    its hash: what anybody can put into a header must be limited, and not end in an exception."""
    if key is None:
        return ""
    if not isinstance(key, str) or is_id(key):
        return key
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"sha256:{digest}"


def headers_of(decision: Acquired) -> List[Tuple[str, str]]:
    """Returns RateLimit-Policy, RateLimit and Retry-After of a decision. A decision without a
    server has only Retry-After, or none."""
    headers: List[Tuple[str, str]] = []
    retry_after: Optional[int] = None
    if not decision.granted and decision.retry_after is not None:
        retry_after = max(1, math.ceil(decision.retry_after))
    if decision.limit and decision.quota > 0:
        policy = f"{_name(decision.limit)};q={_integer(decision.quota)}"
        if decision.window > 0:
            policy += f";w={math.ceil(decision.window)}"
        reset = retry_after if retry_after is not None else math.ceil(decision.reset_after)
        left = f"{_name(decision.limit)};r={_integer(decision.remaining)};t={reset}"
        headers += [("RateLimit-Policy", policy), ("RateLimit", left)]
    if retry_after is not None:
        headers.append(("Retry-After", str(retry_after)))
    return headers


def refusal_of(decision: Acquired, status: int) -> Tuple[str, List[Tuple[str, str]], bytes]:
    """Returns the status line, the headers and the body of a response to a refused request."""
    body = json.dumps({"decision": "REFUSED", "reason": decision.reason,
                       "limit": decision.limit}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))),
               ("Cache-Control", "no-store"), *headers_of(decision)]
    return f"{status} {REASONS[status]}", headers, body


def check_status(status: int) -> int:
    if status not in REASONS:
        raise ValueError("refuse_status: must be 429, 403 or 503")
    return status
