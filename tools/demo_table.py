"""Prints what three trainings of the same model came to: commd, gloo, one process.

Exit code 1 when the ranks of commd do not have identical parameters, or when its result is not
that of one process within rounding: the order in which the gradients are added differs, and 300
steps of training amplify it. Measured: the losses agree to five digits or more.
"""

import json
import sys

LOSS_TOLERANCE = 1e-3  # relative
IMAGES_TOLERANCE = 1  # of 357, about which the model is undecided


def main():
    results = []
    for path in sys.argv[1:4]:
        with open(path) as file:
            results.append(json.load(file))
    commd, gloo, single = results

    rows = [
        ("", "commd", "gloo", "one process"),
        ("ranks", *(str(r["ranks"]) for r in results)),
        ("test accuracy", *(f"{r['accuracy']:.4f}" for r in results)),
        ("  of the model saved and loaded", *(f"{r['accuracy_reloaded']:.4f}" for r in results)),
        ("final loss", *(f"{r['loss']:.6f}" for r in results)),
        ("steps/s", *(f"{r['steps_per_s']:.1f}" for r in results)),
    ]
    for row in rows:
        print(f"{row[0]:32}" + "".join(f"{cell:>14}" for cell in row[1:]))
    print("\nparameters after training with commd, SHA-256:")
    for rank, digest in sorted(commd["hashes"].items(), key=lambda item: int(item[0])):
        print(f"  rank {rank}  {digest}")

    same = len(set(commd["hashes"].values())) == 1
    print("  all ranks identical" if same else "  THE RANKS DIFFER")
    loss = abs(commd["loss"] - single["loss"]) / single["loss"]
    images = round(abs(commd["accuracy"] - single["accuracy"]) * 357)
    equal = loss <= LOSS_TOLERANCE and images <= IMAGES_TOLERANCE
    print(
        f"commd beside one process: loss differs by {loss:.1e} of it, {images} of 357 test images "
        f"otherwise: {'equal within rounding' if equal else 'NOT EQUAL within rounding'}"
    )
    print(f"commd beside gloo: {commd['steps_per_s'] / gloo['steps_per_s']:.2f} times the steps/s")
    sys.exit(0 if same and equal else 1)


main()
