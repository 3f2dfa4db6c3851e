"""The map of shards: which node decides for a key.

The rules (N) are those of doorman_permits.h.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

from ._base import Reader, check_address, is_tls

RESOURCES_MAX = 10_000  # whose rule is remembered
SHARDS_MAX, NODES_MAX, ADDRESSES_MAX = 1024, 256, 16
_MASK = (1 << 64) - 1


def siphash(key: Tuple[int, int], data: bytes) -> int:
    """Returns SipHash-1-3 of some bytes."""
    a, b = key[0] ^ 0x736F6D6570736575, key[1] ^ 0x646F72616E646F6D
    c, d = key[0] ^ 0x6C7967656E657261, key[1] ^ 0x7465646279746573
    whole = len(data) & ~7
    words = [int.from_bytes(data[i:i + 8], "little") for i in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 255) << 56)
    for word in [*words, None, 0, 0]:
        if word is None:
            c, word = c ^ 0xFF, 0
        d ^= word
        a = (a + b) & _MASK
        b = ((b << 13 | b >> 51) & _MASK) ^ a
        a = (a << 32 | a >> 32) & _MASK
        c = (c + d) & _MASK
        d = ((d << 16 | d >> 48) & _MASK) ^ c
        a = (a + d) & _MASK
        d = ((d << 21 | d >> 43) & _MASK) ^ a
        c = (c + b) & _MASK
        b = ((b << 17 | b >> 47) & _MASK) ^ c
        c = (c << 32 | c >> 32) & _MASK
        a ^= word
    return a ^ b ^ c ^ d


def hashed_text(text: str) -> str:
    """Returns what is hashed of a text: what its first braces enclose, or all of it (N1)."""
    start = text.find("{")
    end = text.find("}", start) if start >= 0 else -1
    return text[start + 1:end] if end > start + 1 else text


# ---- globs


@dataclass
class Element:
    """What one character of a text must be."""

    ranges: List[Tuple[str, str]]
    negated: bool = False

    def matches(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated


Glob = List[Optional[Element]]  # None: any text


def _read_bracket(glob: str, at: int) -> Tuple[Optional[Element], int]:
    """Reads what follows a `[`. Returns None if there is no `]`."""
    element, first = Element([], glob[at:at + 1] in ("!", "^")), True
    at += element.negated
    while at < len(glob) and (first or glob[at] != "]"):
        first = False
        at += glob[at] == "\\" and at + 1 < len(glob)
        low = high = glob[at]
        at += 1
        if glob[at:at + 1] == "-" and at + 1 < len(glob) and glob[at + 1] != "]":
            at += 1
            at += glob[at] == "\\" and at + 1 < len(glob)
            high = glob[at]
            at += 1
        element.ranges.append((low, high))
    return (element, at + 1) if at < len(glob) else (None, at)


def read_glob(glob: str) -> Glob:
    """Reads a glob as the shell does. `*` matches `/` too."""
    out: Glob = []
    at = 0
    while at < len(glob):
        character, at = glob[at], at + 1
        if character == "*":
            out.append(None)
            continue
        if character == "[":
            element, end = _read_bracket(glob, at)
            if element:
                at = end
                out.append(element)
                continue
        elif character == "\\" and at < len(glob):
            character, at = glob[at], at + 1
        elif character == "?":
            out.append(Element([], True))
            continue
        out.append(Element([(character, character)]))
    return out


def glob_matches(glob: Glob, text: str) -> bool:
    """Returns whether a glob matches a whole text. After a failure the last `*` takes more."""
    at = place = resume = 0
    star = -1
    while at < len(glob) or place < len(text):
        element = glob[at] if at < len(glob) else None
        if at < len(glob) and element is None:
            at += 1
            star, resume = at, place
        elif element and place < len(text) and element.matches(text[place]):
            at, place = at + 1, place + 1
        elif star < 0 or resume == len(text):
            return False
        else:
            resume += 1
            at, place = star, resume
    return True


# ---- the map


@dataclass
class ShardMap:
    """Which node decides for each shard."""

    epoch: int
    seed: Tuple[int, int]
    owners: List[str]  # the name of a node for each shard
    nodes: Dict[str, List[str]]  # the HTTP addresses of each node; those without any are left out
    rules: List[Tuple[str, Glob, bool]]  # a glob, and whether the resource is hashed
    by_resource: Dict[str, bool] = field(default_factory=dict)

    def owner_of(self, resource_id: str, key: str) -> str:
        """Returns the node that decides for a key."""
        return self.owners[self.shard_of(resource_id, key)]

    def owner_of_id(self, number: int) -> str:
        """Returns the node that has a hold or a transfer (N4)."""
        return self.owners[number % len(self.owners)]

    def shard_of(self, resource_id: str, key: str) -> int:
        """Returns the shard of a key (N1)."""
        text = key if key and not self._is_by_resource(resource_id) else resource_id
        return siphash(self.seed, hashed_text(text).encode()) % len(self.owners)

    def _is_by_resource(self, resource_id: str) -> bool:
        known = self.by_resource.get(resource_id)
        if known is not None:
            return known
        equal = [by for glob, _, by in self.rules if glob == resource_id]
        fits = (by for _, glob, by in self.rules if glob_matches(glob, resource_id))
        known = equal[0] if equal else next(fits, False)
        if len(self.by_resource) < RESOURCES_MAX:
            self.by_resource[resource_id] = known
        return known


def read_map(body: Reader) -> ShardMap:
    """Reads the map of a response. Raises InvalidResponse."""
    value = body.object("map")
    seed = value.text("seed")
    if len(seed) != 32 or not set(seed) <= set("0123456789abcdef"):
        raise value.fail("seed", "must have 32 hexadecimal digits")
    nodes = [Reader(node, "map.nodes[]") for node in value.list("nodes")]
    owners = [Reader(shard, "map.shards[]").text("owner") for shard in value.list("shards")]
    names = [node.text("name") for node in nodes]
    is_valid = len(set(names)) == len(names) <= NODES_MAX and set(owners) <= set(names)
    if not is_valid or not 1 <= len(owners) <= SHARDS_MAX:
        raise value.fail("shards", "each must have one of the nodes as its owner")
    rules = [Reader(rule, "map.rules[]") for rule in
             (value.list("rules") if value.has("rules") else [])]
    return ShardMap(
        value.integer("epoch"), (int(seed[:16], 16), int(seed[16:], 16)), owners,
        {name: node.list("http_addresses") for name, node in zip(names, nodes)
         if node.has("http_addresses")},
        [(rule.text("glob"), read_glob(rule.text("glob")), rule.text("by", "key") == "resource")
         for rule in rules])


def usable(addresses: Sequence[object], needs_tls: bool) -> List[str]:
    """Returns the addresses that a client may ask. A map leads as little from TLS to plain text as
    a redirect does (K3)."""
    out = []
    for address in addresses:
        try:
            text = check_address(address).rstrip("/")
        except ValueError:
            continue
        if is_tls(text) or not needs_tls:
            out.append(text)
    return out[:ADDRESSES_MAX]
