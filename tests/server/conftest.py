"""The identity provider of the policy tests, for the HTTP tests too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "policy"))  # importlib mode puts no test folder on the path
