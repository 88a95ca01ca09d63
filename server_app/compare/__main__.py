"""Run the command by itself: `python -m server_app.compare`."""

import sys

from server_app.compare.command import main

sys.exit(main())
