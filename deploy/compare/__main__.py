"""Run the command by itself: `python -m deploy.compare`."""

import sys

from deploy.compare.command import main

sys.exit(main())
