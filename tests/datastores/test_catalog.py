"""What a user types, and which shards it stands for."""

from pathlib import Path

import pytest
from archives import write_shards

from headrace.datastores.catalog import find_shards
from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.storage import LocalStorage
from headrace.errors import MissingDataError


def test_lists_in_braces_may_be_longer_than_any_name(tmp_path: Path) -> None:
    names = [f"a-rather-long-name-{number:03d}" for number in range(250)]
    for name in ("a-rather-long-name-000", "a-rather-long-name-249"):
        write_shards(tmp_path / name, samples=3)
    braces = f"{tmp_path}/{{{names[0]},{names[249]}}}/shard-000000.tar"
    assert len(ShardDatastore(braces)) == 6
    both = ",".join([names[0], *[names[249]] * 200])
    catalog = find_shards(LocalStorage(), [f"{tmp_path}/{{{both}}}"], "require")
    assert len(both) > 4096
    assert len(catalog.files) == 201
    with pytest.raises(MissingDataError, match="a-rather-long-name-001"):
        ShardDatastore(f"{tmp_path}/{{{','.join(names)}}}")
