"""commctl, commd-perf and commd as pip puts them beside python: each becomes the program that lies
in this package. Only the wheel of ./quickstart wheel has them; else they are where make put them.
"""

import os
import sys

_FOLDERS = {"commd": "sbin", "commctl": "bin", "commd-perf": "bin"}


def main():
    name = os.path.basename(sys.argv[0])
    if name not in _FOLDERS:
        sys.exit(f"commd: {name} is none of {', '.join(sorted(_FOLDERS))}")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), _FOLDERS[name], name)
    try:
        os.execv(path, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {path}: {error.strerror}; install the wheel again")
