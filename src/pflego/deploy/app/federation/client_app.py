"""What every site runs: a client's work on its own data. `pflego deploy inspect` shows what of it leaves."""

from pflego.deploy.flower.client import app

__all__ = ["app"]
