"""Counts in words."""

__all__ = ["show_count"]


def show_count(count: int, noun: str, plural: str | None = None) -> str:
    """Return how many there are of something.

    Example:
        >>> show_count(1, "shard"), show_count(2000, "class", "classes")
        ('1 shard', '2,000 classes')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
