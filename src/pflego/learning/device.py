"""Where tensors live."""

from __future__ import annotations

import torch

from pflego.errors import SettingError


def resolve(device: str | torch.device, dtype: torch.dtype) -> torch.device:
    """Turn "auto" into CUDA, MPS or the CPU, whichever is there first, and any other name into a device."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available() and dtype != torch.float64:
            return torch.device("mps")
        return torch.device("cpu")
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(f"device {str(device)!r} cannot be used here: {reason}") from error
    return torch.device(device)
