"""Writes the counters of a client in the text format of Prometheus."""
from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List

if TYPE_CHECKING:
    from ._engine import Engine

PERMITS = {
    "granted": "Permits that servers have granted.",
    "refused": "Permits that servers have refused.",
    "refused_locally": "Permits refused because a server has refused the same.",
    "prefetch_granted": "Permits granted out of units that were taken ahead.",
    "fallback_granted": "Permits that the fallback has granted.",
    "fallback_refused": "Permits that the fallback has refused.",
    "bypassed": "Refusals that the kill switch or shadow has prevented.",
    "timed_out": "Permits without a decision within their timeout.",
    "reported": "Reports that servers have answered.",
    "lost": "Reports that were given up.",
    "uncharged": "Units of reports that did not fit into a limit.",
    "settled": "Settles that servers have counted.",
    "unsettled": "Settles that were refused or given up.",
    "messages": "Messages on permits that were sent.",
    "failures": "Messages on permits that have failed.",
    "pauses": "How often the breaker has opened.",
    "holds_lost": "Holds that ended or were gone before their release.",
    "moved": "Calls that were sent again, because their shard moved.",
}
GAUGES = {
    "waiting": "Permits, reports and settles without a result.",
    "holds": "Holds that the client keeps, asks for, or has to release.",
    "is_pausing": "1: the breaker is open.",
}
RESOURCES = {
    "capacity": ("gauge", "The capacity in force; -1: unlimited."),
    "wants": ("gauge", "What the resource wants."),
    "in_use": ("gauge", "Units of a gauge in use."),
    "leased": ("gauge", "1: there is a lease. 0: the fallback is in force."),
    "allowed": ("counter", "Units that were allowed."),
    "refused": ("counter", "Units that were refused."),
    "excess": ("counter", "Units allowed only because of shadow mode or the kill switch."),
}


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _family(lines: List[str], name: str, kind: str, about: str, values: Dict[str, float]) -> None:
    suffix = "_total" if kind == "counter" else ""
    lines.append(f"# HELP {name}{suffix} {about}")
    lines.append(f"# TYPE {name}{suffix} {kind}")
    for labels, value in values.items():
        lines.append(f"{name}{suffix}{labels} {value:.16g}")


def write_metrics(engine: "Engine") -> str:
    """Returns all counters of a client."""
    from ._engine import clock  # noqa: PLC0415  this module is a part of the engine

    lines: List[str] = []
    counts = engine.permits.read()
    for name, about in PERMITS.items():
        _family(lines, f"doorman_client_permits_{name}", "counter", about, {"": counts[name]})
    for name, about in GAUGES.items():
        _family(lines, f"doorman_client_permits_{name}", "gauge", about, {"": counts[name]})
    infos = [engine.leases.read(r, clock()) for r in engine.leases.resources.values()]
    for name, (kind, about) in RESOURCES.items():
        values = {f'{{resource="{_escape(info.resource_id)}"}}': float(getattr(info, name))
                  for info in infos}
        if values:
            _family(lines, f"doorman_client_resource_{name}", kind, about, values)
    _family(lines, "doorman_client_lease_failures", "counter",
            "Requests for leases without a useful response.",
            {"": float(engine.leases.failure_count)})
    return "\n".join(lines) + "\n"
