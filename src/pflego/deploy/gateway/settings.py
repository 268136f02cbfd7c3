"""What a deployment says of clients in browsers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pflego.declaration import Limits, Positive, Spelled, check_fields, declared


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """Whether clients in browsers may take part, and where they come in.

    Parameters
    ----------
    port
        Where the gateway for clients in browsers listens; 0: there is none.
    host
        The address that it listens on. It speaks plain HTTP: let nginx stand before it, on the same machine.
    kit
        The folder of the kit that the page loads, as pflego kit has made it for this app.
    tokens
        The file that says who may come in, as pflego deploy token writes it.
    limit
        The largest number of bytes of a request. nginx.conf has it as it was when the app was made.
    silence
        Seconds without a sign of life after which a tab counts as gone.
    """

    port: Annotated[int, Limits(least=0, most=65535), Spelled("gateway_port")] = 0
    host: Annotated[str, Spelled("gateway_host")] = "127.0.0.1"
    kit: Annotated[str, Spelled("gateway_kit")] = "kit"
    tokens: Annotated[str, Spelled("gateway_tokens")] = "tokens.json"
    limit: Annotated[int, Limits(least=4096, most=2**31), Spelled("gateway_limit")] = 32_000_000
    silence: Annotated[Positive, Spelled("gateway_silence")] = 60.0

    def __post_init__(self) -> None:
        check_fields(self)

    def settings(self) -> dict[str, object]:
        """Map the names of settings to their values."""
        return {name: getattr(self, one.parameter) for name, one in declared(Gateway).items()}
