#!/usr/bin/env python3
"""Do the links between the documents lead somewhere, headings included?

    tests/check_links.py [FOLDER]      of FOLDER, where packaged documents lie; else of the tree
    tests/check_links.py --cut FOLDER  makes plain words of links that lead out of FOLDER

--cut is for packages (debian/rules), which have the documents and not the sources.
"""

import os
import re
import sys

LINK = re.compile(r"(?<!\!)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"```.*?```", re.S)


def documents(top):
    skip = {".git", ".venv", ".cache", "build", "node_modules"}
    for folder, folders, files in os.walk(top):
        folders[:] = set(folders) - skip - {name for name in folders if name.startswith("build-")}
        yield from (os.path.join(folder, name) for name in files if name.endswith(".md"))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def anchors(text):
    """Of headings, as renderers make them: lower case, hyphens for blanks, only letters left."""
    found = re.findall(r"^#+ +(.*)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in found}


def is_good(path, target):
    if re.match(r"[a-z]+:", target):
        return True
    file, _, anchor = target.partition("#")
    other = os.path.join(os.path.dirname(path), file) if file else path
    if not os.path.exists(other):
        return False
    return not anchor or not other.endswith(".md") or anchor in anchors(read(other))


def cut(path):
    text = read(path)
    new = LINK.sub(lambda m: m[0] if is_good(path, m[2]) else m[1], text)
    if new != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)


def main(words):
    if words[:1] == ["--cut"]:
        for path in documents(words[1]):
            cut(path)
        return
    top = words[0] if words else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    seen = bad = 0
    for path in sorted(documents(top)):
        for m in LINK.finditer(FENCE.sub("", read(path))):
            seen += 1
            if not is_good(path, m[2]):
                bad += 1
                print(f"{os.path.relpath(path, top)}: [{m[1]}]({m[2]}) leads nowhere")
    print(f"{seen} links looked at")
    sys.exit(bad > 0)


main(sys.argv[1:])
