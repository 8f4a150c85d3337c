"""The result of compare.py as text."""

import statistics

import machine

MOVED = 1.5  # times the least word: the cores have been moved
STOLEN_MOST = 0.03  # of the cores' time by the host: what was measured then is the host

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
    return (
        [n for n in OURS[:1] if n in names]
        + [n for n in names if n not in OURS]
        + [n for n in OURS[1:] if n in names]
    )


def p50(row, name):
    return row["times"][name]["p50_us"] if name in row["times"] else None


def best_of(row, names):
    """(its name, its time), or None."""
    there = [(p50(row, n), n) for n in names if n in row["times"]]
    return min(there)[::-1] if there else None


def ratio(row, ours, names):
    best, mine = best_of(row, names), p50(row, ours)
    return mine / best[1] if best and mine is not None else None


def with_setting(row, best):
    """The best one's name, with its setting if it has several."""
    if not best:
        return "-"
    setting = row["times"][best[0]].get("setting")
    return f"{best[0]} [{setting}]" if setting else best[0]


def word(row):
    """How far apart the cores were while the row was measured: "78", or "78-390"."""
    words = row.get("word_ns")
    if not words:
        return "-"
    least, most = words[0], words[-1]
    return f"{least}-{most}" if most > MOVED * least else str(words[len(words) // 2])


def cell(value, width, digits=2):
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def text(result, name):
    place = result["placements"].get(name)
    if not place or not place["rows"]:
        return ""
    names = columns(place["rows"])
    others = [n for n in names if n not in OURS]
    widths = {n: max(len(n), 10) + 2 for n in names}
    lines = [
        f"\n{place['title']}: median us; "
        f"{place['stolen']:.0%} of the cores' time was stolen by the host"
    ]
    if place["stolen"] > STOLEN_MOST:
        lines.append(
            f"DO NOT QUOTE: more than {STOLEN_MOST:.0%} was stolen; run it again at another time"
        )
    head = f"{'':15}{'size':>8}" + "".join(f"{n:>{widths[n]}}" for n in names)
    head += f"{'best other':>30}{'commd/best':>12}{'word, ns':>10}"
    head += f"{'torch: ours/best':>18}" if "torch commd" in names else ""
    versus = "commd op" in names and "DeepSpeed shm" in names
    head += f"{'op/DeepSpeed':>14}" if versus else ""
    lines.append(head)
    for row in place["rows"]:
        best = best_of(row, others)
        size = human(row["bytes"]) if row["bytes"] and row["collective"] != "barrier" else ""
        line = f"{row['collective']:15}{size:>8}"
        line += "".join(cell(p50(row, n), widths[n]) for n in names)
        line += f"{with_setting(row, best):>30}{cell(ratio(row, 'commd', others), 12)}"
        line += f"{word(row):>10}"
        if "torch commd" in names:
            line += cell(ratio(row, "torch commd", OF_TORCH), 18)
        if versus:
            line += cell(ratio(row, "commd op", OF_TORCH[1:]), 14)
        lines.append(line)
    return "\n".join(lines)


def head(result):
    return (
        f"commd {result['versions']['commd']} ({result['commit'][:12]}), {result['date']}\n"
        f"{machine.text(result['machine'])}, load before {result['load_before']:.1f}\n"
        + ", ".join(f"{n} {v}" for n, v in result["versions"].items() if n != "commd")
    )


def foot(result):
    notes = [f"not in some table: {name}: {why}" for name, why in result["missing"].items()]
    return "\n" + "\n".join(
        [
            "f32, sum, in place where there is one buffer; "
            "pingpong is half the way there and back.",
            "word: to the other core and back, before each turn of the row; a range: the host "
            "moved the cores meanwhile, and the ratio may compare near ones with far ones.",
            *encryption_of(result),
            *settings_of(result),
            *notes,
        ]
    )


def encryption_of(result):
    if not result.get("encrypts"):  # not in results of before there was encryption
        return []
    return ["Between two nodes commd encrypts data, the others do not: --clear is without it."]


def settings_of(result):
    if not result.get("settings"):
        return []
    return ["Each MPI in its best setting of the row:"] + [
        f"  {name}: {says}" for name, says in result["settings"].items()
    ]


# ---- several runs --------------------------------------------------------------------------------


def ratios_of(results, name):
    """{(collective, bytes): [commd / best other of each run]}, in the order of the first run."""
    found = {}
    for result in results:
        for row in result["placements"].get(name, {}).get("rows", []):
            value = ratio(row, "commd", [n for n in row["times"] if n not in OURS])
            if value is not None:
                found.setdefault((row["collective"], row["bytes"]), []).append(value)
    return found


def combined(results):
    """Median and range of the ratios over runs at different times."""
    lines = [f"{len(results)} runs: " + ", ".join(result["date"] for result in results)]
    for name in results[0]["placements"]:
        stolen = [r["placements"][name]["stolen"] for r in results if name in r["placements"]]
        lines.append(
            f"\n{results[0]['placements'][name]['title']}: commd / best other; stolen by the host: "
            + ", ".join(f"{s:.0%}" for s in stolen)
        )
        lines.append(f"{'':15}{'size':>8}{'median':>9}{'least':>9}{'most':>9}{'runs':>6}")
        for (collective, size), values in ratios_of(results, name).items():
            shown = human(size) if size and collective != "barrier" else ""
            lines.append(
                f"{collective:15}{shown:>8}{statistics.median(values):9.2f}{min(values):9.2f}"
                f"{max(values):9.2f}{len(values):6}"
            )
    return "\n".join(lines)
