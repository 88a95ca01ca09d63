"""Run the command by itself: `python -m server_app.costs`."""

import sys

from server_app.costs.command import main

sys.exit(main())
