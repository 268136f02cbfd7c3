"""What the server runs: pflego's round loop, with clients at their own sites."""

from pflego.deploy.flower.server import app

__all__ = ["app"]
