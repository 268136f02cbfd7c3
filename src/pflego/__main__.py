"""python -m pflego is the pflego command."""

import sys

try:
    from pflego.cli import main

    main()
except KeyboardInterrupt:  # while the commands were loaded
    sys.exit(130)
