"""Run the command by itself: `python -m deploy.costs`."""

import sys

from deploy.costs.command import main

sys.exit(main())
