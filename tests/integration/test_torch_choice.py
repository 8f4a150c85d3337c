#!/usr/bin/env python3
"""Which torch backend commd.torch loads, and what it says where there is none that fits: with a
package that stands for torch, so that any release can be there.
"""

import glob
import importlib.machinery
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lib"))
from cluster import check, equal, main  # noqa: E402

SOURCE = os.path.join(HERE, "../../client/python/commd")
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
PYTHON = ".".join(str(part) for part in sys.version_info[:2])
LOAD = "import commd.torch as t\ntry: t.load()\nexcept ImportError as error: print(error)"


# Of a stand-in for torch and for what it compiles with.
TELLS_HOW_IT_LINKS = {
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": (
        "class BuildExtension:\n"
        "    def __init__(self, *_, **__):\n        pass\n"
        "    def ensure_finalized(self):\n        pass\n"
        "    run = ensure_finalized\n"
        "def CppExtension(*_, extra_link_args, **__):\n    print(*extra_link_args)\n"
    ),
    "setuptools.py": "def Distribution(_):\n    pass\n",
}


def said(torch, built, origin, other=(), program=("-c", LOAD), more=None):
    """By commd.torch.load() with torch @torch, where backends are named as in @built. They are no
    libraries, so that one that is chosen cannot be loaded."""
    with tempfile.TemporaryDirectory(prefix="commd-choice.") as place:
        os.makedirs(f"{place}/torch")
        os.makedirs(f"{place}/commd/include/commd")
        for path in glob.glob(f"{SOURCE}/*.py"):
            shutil.copyfile(path, f"{place}/commd/{os.path.basename(path)}")
        files = {
            "torch/__init__.py": f"__version__ = {torch!r}\n",
            "torch/distributed.py": "def is_available():\n    return False\n",
            "commd/include/commd/commd.h": "",
            "commd/_origin.py": f"ORIGIN = {origin!r}\n",
            **{f"commd/_torch_{version}{SUFFIX}": "" for version in built},
            **{f"commd/{name}": "" for name in other},
            **(more or {}),
        }
        for name, text in files.items():
            os.makedirs(os.path.dirname(f"{place}/{name}"), exist_ok=True)
            with open(f"{place}/{name}", "w") as file:
                file.write(text)
        environment = dict(os.environ, PYTHONPATH=place, PYTHONDONTWRITEBYTECODE="1",
                           XDG_CACHE_HOME=f"{place}/cache", CXX="/nonexistent/c++")  # fmt: skip
        done = subprocess.run(
            [sys.executable, *program], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        equal(done.returncode, 0, done.stdout)
        return done.stdout.replace(place, "PLACE")


def test_the_one_for_this_torch():
    for torch, name in (("2.14.1+cu130", "2_14"), ("2.15.0", "2_15"), ("2.13.0+cpu", "2_13")):
        text = said(torch, ["2_13", "2_14", "2_15"], {"wheel": True})
        check(f"PLACE/commd/_torch_{name}{SUFFIX}: file too short" in text, text)


def test_a_wheel_without_it():
    """All that is missing is said at once, and the way out that needs no compiler."""
    text = said("2.16.0+cu132", ["2_13", "2_9"], {"wheel": True}, ["_torch_2_16.cpython-399.so"])
    begin = (
        f"commd: this wheel has a torch backend for torch 2.9, 2.13 with Python {PYTHON}, and for "
        "torch 2.16.0+cu132 none can be compiled: there is no C++ compiler, /nonexistent/c++ "
        "(Debian: apt install g++)"
    )
    end = ". Or take a torch that it has one for: pip install 'torch==2.13.*'\n"
    check(text.startswith(begin) and text.endswith(end), text)
    text = text[len(begin) : -len(end)]
    lacks = {", no Python.h (Debian: apt install python3-dev)",
             ", no setuptools (pip install setuptools)"}  # fmt: skip
    check(not text or any(text.startswith(lack) for lack in lacks), text)
    text = said("2.16.0", [], {"wheel": True})
    check(f"this wheel has no torch backend with Python {PYTHON}, and for" in text, text)
    check("Or take a torch" not in text, text)


def test_another_torch_than_it_was_built_for():
    text = said("2.15.0+cu132", ["2_13"], {"source": "/src/commd", "prefix": "/usr"})
    equal(text, "commd: no torch backend for torch 2.15.0+cu132: this commd was built for torch "
          f"2.13. Run:\n  COMMD_PREFIX=/usr {sys.executable} -m pip install "
          "--no-build-isolation --no-deps --force-reinstall commd\n")  # fmt: skip


def test_it_is_linked_with_the_library_of_torch():
    """Where the compiler finds no shared libstdc++ the backend would have one of its own."""
    loads = 'import ctypes\n__version__ = "2.14.0"\nctypes.CDLL("libstdc++.so.6")\n'
    more = {**TELLS_HOW_IT_LINKS, "torch/__init__.py": loads}
    words = said("2.14.0", [], {}, program=("-m", "commd._build", "."), more=more).split()
    equal(words[0], "PLACE/commd/lib/libcommd.so.0")
    equal(len(words), 2, words)
    check(re.fullmatch(r"/.*/libstdc\+\+\.so[.0-9]*", words[1]), words)
    check(os.path.exists(words[1]), words)


def test_none_at_all():
    text = said("2.15.0", [], {"source": "", "prefix": ""})
    check("this commd was installed without it. Run:\n" in text, text)


if __name__ == "__main__":
    main(globals())
