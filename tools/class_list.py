"""``--classes``: the names of all classes, in the order of their numbers, as somebody types them."""

from pathlib import Path

from ..errors import ConfigError, MissingDataError

__all__ = ["read_classes"]


def read_classes(text: str) -> tuple[str, ...]:
    """Return class names.

    Args:
        text: names with commas between them; or a file with one name a line; or a folder of shards (or its
            ``index.json``), whose classes are taken, so that a validation set gets the numbers of the training set.

    Raises:
        ConfigError: the file holds no names, or the shards have no classes.
        MissingDataError: a path that is not there.
        ShardError: an index that cannot be used.

    Example:
        >>> read_classes("cat, dog")
        ('cat', 'dog')
    """
    from ..datastores.index import INDEX_NAME, Index
    from ..datastores.storage import local_path, read_file

    path = Path(local_path(text))
    if (path / INDEX_NAME).is_file():
        path /= INDEX_NAME
    if not path.is_file():
        if "/" in text:
            raise MissingDataError(f"{text} is not there: name a file of class names, a folder of shards, or a,b,c")
        return tuple(name.strip() for name in text.split(","))
    data = read_file(str(path))
    if data.lstrip()[:1] == b"{":
        names = Index.unpack(data, str(path)).classes
    else:
        lines = data.decode("utf-8-sig", "surrogateescape").splitlines()  # as names of folders are spelled
        names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise ConfigError(f"{path} names no classes: write one name a line, or a,b,c")
    return names
