"""python -m pflego is the pflego command."""

from pflego.cli import main

main()
