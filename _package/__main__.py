"""``python -m headrace`` is the ``headrace`` command."""

import sys

from .tools.cli import main

sys.exit(main())
