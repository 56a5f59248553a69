"""Host rules as data. Nothing here touches a network."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .._errors import PolicyError

Decision = Literal["allow", "prompt", "forbidden"]

_DECISIONS: dict[str, Decision] = {
    "allow": "allow",
    "allowed": "allow",
    "prompt": "prompt",
    "forbidden": "forbidden",
    "deny": "forbidden",
    "denied": "forbidden",
}


class NetworkRule(NamedTuple):
    """One host rule. `host` is a name, `*.name` for its strict subdomains, an address, or `*` (never to allow)."""

    host: str
    port: int | None
    protocol: str | None
    decision: Decision
    justification: str | None = None


def network_rule(
    host: str,
    port: int | None = None,
    protocol: str | None = None,
    decision: str = "allow",
    justification: str | None = None,
) -> NetworkRule:
    """Makes a host rule.

    Raises:
        PolicyError: an empty host, a port outside 1-65535, an unknown decision, or a bare `*` with "allow".
    """
    if not isinstance(host, str) or not host or host != host.strip() or "\0" in host:
        raise PolicyError(f"network_rule(host={host!r}): a host name or address is needed")
    if port is not None and not (isinstance(port, int) and 1 <= port <= 65535):
        raise PolicyError(f"network_rule(port={port!r}): a port is a number from 1 to 65535")
    if decision not in _DECISIONS:
        raise PolicyError(f"network_rule(decision={decision!r}): one of {', '.join(sorted(_DECISIONS))}")
    if host == "*" and _DECISIONS[decision] == "allow":
        raise PolicyError("network_rule(host='*', decision='allow'): spell it danger.UNRESTRICTED_NETWORK")
    return NetworkRule(host, port, protocol, _DECISIONS[decision], justification)
