"""Compares the stub file named on the command line with the package, and prints what differs.

Both ways: names, methods, and for methods written in Python the names, order, kinds and defaults of
parameters. (Of a method in C nothing but its name is known.)
"""

import ast
import inspect
import sys

import commd


def stub_functions(body):
    """name -> its definitions, one for each overload."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


def parameters_of(node):
    """What inspect.signature() would say; a default "..." stands for any."""
    a = node.args
    positional = a.posonlyargs + a.args
    defaults = [None] * (len(positional) - len(a.defaults)) + a.defaults
    result = [(p.arg, "positional", d) for p, d in zip(positional, defaults)]
    if a.vararg:
        result.append((a.vararg.arg, "rest", None))
    return result + [(p.arg, "keyword", d) for p, d in zip(a.kwonlyargs, a.kw_defaults)]


def parameters_real(function):
    kinds = {
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.VAR_POSITIONAL: "rest",
    }
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, kinds.get(p.kind, "positional"), p.default) for p in parameters]


def differs(node, function):
    stub, real = parameters_of(node), parameters_real(function)
    if [s[:2] for s in stub] != [r[:2] for r in real]:
        return f"stub has {[s[:2] for s in stub]}, package {[r[:2] for r in real]}"
    for (name, _, said), (_, _, default) in zip(stub, real):
        if said is None or ast.unparse(said) == "...":
            continue
        if default is inspect.Parameter.empty or ast.literal_eval(said) != default:
            return f"default of {name}: stub has {ast.unparse(said)}, package {default!r}"
    return None


def compare(where, stubs, real):
    for name in sorted(set(stubs) ^ set(real)):
        print(f"{where}{name}: only in the {'stubs' if name in stubs else 'package'}")
    for name in sorted(set(stubs) & set(real)):
        if not inspect.isfunction(real[name]):
            continue
        for node in stubs[name]:
            text = differs(node, real[name])
            if text:
                print(f"{where}{name}: {text}")


def members(cls):
    special = ("__enter__", "__exit__", "__await__", "__len__")
    return {n: getattr(cls, n) for n in dir(cls) if n[0] != "_" or n in special}


def main():
    with open(sys.argv[1]) as file:
        tree = ast.parse(file.read())
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    names = set(classes) | set(stub_functions(tree.body))
    names |= {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign)} - {"__all__"}
    for name in sorted(
        {n for n in names if n[0] != "_" or n == "__version__"} ^ set(commd.__all__)
    ):
        print(f"{name}: only in {'the stubs' if name in names else '__all__'}")
    compare("", stub_functions(tree.body), {"connect": commd.connect})
    for name, node in classes.items():
        if name[0] == "_" and name != "_Start":
            continue  # protocols, which only the stubs need
        cls = type(commd.Group().start) if name == "_Start" else getattr(commd, name)
        if issubclass(cls, (commd.Error, tuple)):
            wanted = [b.__name__ for b in cls.__bases__]
            got = [ast.unparse(b) for b in node.bases]
            if got != wanted and issubclass(cls, commd.Error):
                print(f"{name}: bases are {got} in the stubs, {wanted} in the package")
            continue
        stubs = stub_functions(node.body)
        if name == "_Start":
            stubs.update(rank=[], size=[])
        if name == "Batch":
            stubs.update(rank=[], size=[])
        compare(f"{name}.", stubs, members(cls))


main()
