#!/usr/bin/env python3
"""Draws what client/python/examples/recover.py prints.

    recover.py's ranks ... | tools/loss_picture.py > doc/recovery-loss.svg

Input: its lines on stdin, others among them. Output: an SVG with the loss of the job that lost a
rank, that of the undisturbed run, and how many ranks each step had.
"""

import re
import sys

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 320, 50, 20, 60
LINE = re.compile(r"step +(\d+) +ranks (\d+) +loss ([\d.]+) +undisturbed ([\d.]+)")


def main():
    found = [match for match in map(LINE.match, sys.stdin) if match]
    rows = [[float(word) for word in match.groups()] for match in found]
    if not rows:
        sys.exit("loss_picture.py: stdin has no line of recover.py, such as"
                 " 'step 0  ranks 4  loss 1.5  undisturbed 1.5'")  # fmt: skip
    steps, most = len(rows), max(max(row[2:]) for row in rows)
    inner, high = WIDTH - LEFT - 20, HEIGHT - TOP - BOTTOM

    def at(step, loss):
        return LEFT + inner * (step + 0.5) / steps, TOP + high * (1 - loss / most)

    def curve(column, style):
        points = " ".join("{:.1f},{:.1f}".format(*at(row[0], row[column])) for row in rows)
        return f'<polyline points="{points}" fill="none" {style}/>'

    def text(x, y, words, more=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>'

    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for step, ranks, *_ in rows:
        x, bottom = at(step, 0)
        if ranks < max(row[1] for row in rows):
            shapes.append(f'<rect x="{x - inner / steps / 2:.1f}" y="{TOP}" fill="#f3d9d4"'
                          f' width="{inner / steps:.1f}" height="{high}"/>')  # fmt: skip
        shapes.append(text(x, bottom + 16, f"{step:.0f}", 'text-anchor="middle"'))
        shapes.append(text(x, bottom + 32, f"{ranks:.0f}", 'text-anchor="middle" fill="#a33"'))
    shapes += [
        text(4, TOP + high + 16, "step"),
        text(4, TOP + high + 32, "ranks", 'fill="#a33"'),
        text(4, TOP + 10, f"{most:.2f}"),
        text(4, TOP + high, "0"),
        curve(3, 'stroke="#bbb" stroke-width="7"'),
        curve(2, 'stroke="#124" stroke-width="2"'),
        text(WIDTH / 2, HEIGHT - 8, "loss: thin, of the job that lost a rank; thick, undisturbed",
             'text-anchor="middle"'),
        "</svg>",
    ]  # fmt: skip
    print("\n".join(shapes))


if __name__ == "__main__":
    main()
