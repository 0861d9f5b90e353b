"""``headrace cache``: the local copies of remote shards, shown or removed."""

import argparse
import json
import os
from datetime import UTC, datetime

from .progress import show_bytes, show_count

__all__ = ["CACHE_VARIABLE", "add_arguments", "run"]

#: The environment variable that names the folder for copies of remote shards; only commands read it.
CACHE_VARIABLE = "HEADRACE_CACHE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("action", choices=["ls", "clear"], help="ls: show the copies; clear: remove them all")
    parser.add_argument(
        "--dir", metavar="FOLDER", help=f"where they are; default: ${CACHE_VARIABLE}, or ~/.cache/headrace"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the copies, used last first, or remove them; a copy that is on its way stays."""
    from ..datastores.cache import Cache

    cache = Cache.make(options.dir or os.environ.get(CACHE_VARIABLE))
    if options.action == "clear":
        count, size = cache.clear()
        answer = {"folder": str(cache.folder), "removed": count, "bytes": size}
        text = f"{show_count(count, 'file')} ({show_bytes(size)}) removed: {cache.folder}"
        print(json.dumps(answer, indent=1) if options.json else text)
        return 0
    entries = cache.entries()
    total = sum(entry.size for entry in entries)
    if options.json:
        files = [{"url": entry.url, "bytes": entry.size, "used": entry.used} for entry in entries]
        print(json.dumps({"folder": str(cache.folder), "bytes": total, "files": files}, indent=1))
        return 0
    for entry in entries:
        used = datetime.fromtimestamp(entry.used, UTC).strftime("%Y-%m-%d %H:%M")
        print(f"{show_bytes(entry.size):>10}  {used}  {entry.url or f'{entry.path.name} (damaged)'}")
    print(f"{show_count(len(entries), 'file')} ({show_bytes(total)}): {cache.folder}")
    return 0
