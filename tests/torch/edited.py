"""A file of others with changes in it, for programs that run such a file."""


def edited(path, edits):
    """Its text. @edits: (before, after), each `before` stands there exactly once."""
    with open(path) as file:
        text = file.read()
    for before, after in edits:
        if text.count(before) != 1:
            raise SystemExit(f"{text.count(before)} times in {path}, not once: {before}")
        text = text.replace(before, after)
    return text
