"""What has to run when the program has ended, and the interpreter is still whole."""

import atexit
import os


class _Last:
    def __init__(self, function):
        self.function, self.pid = function, os.getpid()

    def __del__(self):
        if self.pid == os.getpid():
            self.function()


def after_all(function):
    """Calls @function after all functions of atexit, whichever are registered before or after.

    atexit calls what was registered last first, and forgets a function that is registered while it
    calls them. But it drops them all together after the last call, and what they hold with them. A
    forked child, which may drop them at its beginning, has to register anew.
    """
    atexit.register(_hold, _Last(function))


def _hold(last):
    pass
