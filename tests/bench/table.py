"""The result of compare.py as text."""

OURS = ("commd", "torch commd", "commd op")
OF_TORCH = ("gloo", "DeepSpeed shm")


def human(size):
    for unit in ("B", "KB", "MB"):
        if size < 1024 or unit == "MB":
            return f"{size} {unit}"
        size //= 1024


def columns(rows):
    """Every name that has a time in some row, ours first."""
    names = []
    for row in rows:
        names += [name for name in row["times"] if name not in names]
    return [n for n in OURS[:1] if n in names] + [n for n in names if n not in OURS] + [
        n for n in OURS[1:] if n in names
    ]


def p50(row, name):
    return row["times"][name]["p50_us"] if name in row["times"] else None


def best_of(row, names):
    """(its name, its time), or None."""
    there = [(p50(row, n), n) for n in names if n in row["times"]]
    return min(there)[::-1] if there else None


def ratio(row, ours, names):
    best, mine = best_of(row, names), p50(row, ours)
    return mine / best[1] if best and mine is not None else None


def cell(value, width, digits=2):
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def text(result, name):
    place = result["placements"].get(name)
    if not place or not place["rows"]:
        return ""
    names = columns(place["rows"])
    others = [n for n in names if n not in OURS]
    widths = {n: max(len(n), 10) + 2 for n in names}
    lines = [f"\n{place['title']}: median us; {place['stolen']:.0%} of the cores' time was stolen by the host"]
    head = f"{'':15}{'size':>8}" + "".join(f"{n:>{widths[n]}}" for n in names)
    head += f"{'best other':>15}{'commd/best':>12}"
    head += f"{'torch: ours/best':>18}" if "torch commd" in names else ""
    versus = "commd op" in names and "DeepSpeed shm" in names
    head += f"{'op/DeepSpeed':>14}" if versus else ""
    lines.append(head)
    for row in place["rows"]:
        best = best_of(row, others)
        size = human(row["bytes"]) if row["bytes"] and row["collective"] != "barrier" else ""
        line = f"{row['collective']:15}{size:>8}"
        line += "".join(cell(p50(row, n), widths[n]) for n in names)
        line += f"{best[0] if best else '-':>15}{cell(ratio(row, 'commd', others), 12)}"
        if "torch commd" in names:
            line += cell(ratio(row, "torch commd", OF_TORCH), 18)
        if versus:
            line += cell(ratio(row, "commd op", OF_TORCH[1:]), 14)
        lines.append(line)
    return "\n".join(lines)


def head(result):
    machine = result["machine"]
    return (
        f"commd {result['versions']['commd']} ({result['commit'][:12]}), {result['date']}\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Linux {machine['kernel']}, "
        f"load before {result['load_before']:.1f}\n"
        + ", ".join(f"{n} {v}" for n, v in result["versions"].items() if n != "commd")
    )


def foot(result):
    notes = [f"not in some table: {name}: {why}" for name, why in result["missing"].items()]
    return "\n" + "\n".join(
        ["f32, sum, in place where there is one buffer; pingpong is half the way there and back.", *notes]
    )
