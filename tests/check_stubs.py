#!/usr/bin/env python3
"""In Python's stubs each operation is written once, in class Group.

    tests/check_stubs.py            do _Start and Batch say the same? exit 1 if not
    tests/check_stubs.py --mend     makes them from Group

g.start.X() takes what g.X() takes, and returns a Work of its result. batch.X() takes whatever one
of the overloads of g.X() takes, and returns a place in the list of results. numpy_stubs.py in
tests/integration/lib compares Group with the package.
"""

import ast
import os
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STUBS = os.path.join(TOP, "client/python/commd/__init__.pyi")
FIRST = "barrier"  # where the operations begin; they end with the class
BOUNDS = {"_A": "_Array", "_O": "_Blocks"}  # the type variables of Group
COLUMNS = 100


def source(node):
    return ast.unparse(node).replace("'", '"')


def parameter(name, annotation, default):
    text = name if annotation is None else f"{name}: {annotation}"
    return text if default is None else f"{text} = {default}"


def parameters(function):
    """["self", "array: _A", ...]"""
    a = function.args
    defaults = [None] * (len(a.args) - len(a.defaults)) + a.defaults
    pairs = list(zip(a.args, defaults))
    result = [[p.arg, p.annotation and source(p.annotation), d and source(d)] for p, d in pairs]
    rest = [[p.arg, source(p.annotation), source(d)] for p, d in zip(a.kwonlyargs, a.kw_defaults)]
    return result + [["*", None, None]] + rest


def batched(last):
    """Of the last overload, which takes the most: type variables become what they stand for."""
    result = []
    for name, annotation, default in parameters(last):
        annotation = BOUNDS.get(annotation, annotation)
        if name == "out":
            annotation, default = f"{annotation} | None", "None"
        result.append((name, annotation, default))
    return result


def definition(name, words, returns, overloaded):
    """The text of one method, in lines as long as may be; options begin a line of their own."""
    words = [parameter(*word) for word in words]
    head = ["    @overload\n"] if overloaded else []
    whole = f"    def {name}({', '.join(words)}) -> {returns}: ...\n"
    if len(whole) <= COLUMNS + 1:
        return "".join([*head, whole])
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 10 > COLUMNS or lines[-1].endswith("*, "):
            lines.append("")
        lines[-1] += word + ", "
    body = "".join(f"        {line.rstrip()}\n" for line in lines)
    return "".join([*head, f"    def {name}(\n{body}    ) -> {returns}: ...\n"])


def main():
    mend = sys.argv[1:] == ["--mend"]
    if sys.argv[1:] and not mend:
        sys.exit(__doc__)
    with open(STUBS) as file:
        old = file.read()
    classes = {n.name: n for n in ast.parse(old).body if isinstance(n, ast.ClassDef)}
    operations = {}
    for node in classes["Group"].body:
        if isinstance(node, ast.FunctionDef) and (operations or node.name == FIRST):
            operations.setdefault(node.name, []).append(node)
    made = {"Group": [], "_Start": [], "Batch": []}
    for name, nodes in operations.items():
        for node in nodes:
            words, returns, many = parameters(node), source(node.returns), len(nodes) > 1
            made["Group"].append(definition(name, words, returns, many))
            made["_Start"].append(definition(name, words, f"Work[{returns}]", many))
        made["Batch"].append(definition(name, batched(nodes[-1]), "int", False))
    lines = old.splitlines(keepends=True)
    for name in sorted(made, key=lambda name: -classes[name].lineno):
        body = classes[name].body
        (first,) = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == FIRST]
        lines[first.lineno - 1 : body[-1].end_lineno] = made[name]
    new = "".join(lines)
    if len(operations) < 10:
        sys.exit(f"FAIL: {len(operations)} operations found in {STUBS}")
    if mend:
        with open(STUBS, "w") as file:
            file.write(new)
    elif new != old:
        print("FAIL: _Start and Batch are not what Group says: tests/check_stubs.py --mend")
        return 1
    print(f"{len(operations)} operations, {sum(map(len, operations.values()))} signatures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
