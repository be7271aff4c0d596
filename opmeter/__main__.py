"""`python -m opmeter`: the command of the installed distribution.

The commands are above this package, which does not import them: the distribution names them.
"""

import sys
from importlib.metadata import entry_points

found = [*entry_points(group="console_scripts", name="opmeter")]
if not found:
    sys.exit("opmeter: the command is not installed here: pip install opmeter")
found[0].load()()
