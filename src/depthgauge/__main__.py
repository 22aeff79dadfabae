"""``python -m depthgauge`` is the command."""

import sys

from depthgauge.cli.main import main

sys.exit(main())
