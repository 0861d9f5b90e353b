"""Slots: where rows lie, that memory is used again, and that it is not while somebody looks."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.datastores.schema import Field, Schema
from headrace.datastores.slots import SharedFile, SlotLayout, SlotMap, SlotRing
from headrace.errors import ConfigError

SCHEMA = Schema(
    (Field("image", (4, 5, 3), "uint8", is_image=True), Field("label", (), "int64"), Field("x", (2,), "float32"))
)


@given(
    rows=st.integers(1, 300),
    shape=st.lists(st.integers(1, 30), max_size=3),
    dtype=st.sampled_from(["uint8", "int64", "float16"]),
)
def test_fields_do_not_overlap(rows: int, shape: list[int], dtype: str) -> None:
    layout = SlotLayout(Schema((*SCHEMA.fields, Field("y", tuple(shape), dtype))), rows)
    memory = np.zeros(layout.slot_bytes, np.uint8)
    for number, column in enumerate(layout.view(memory, rows).values(), start=1):
        assert not np.frombuffer(column.tobytes(), np.uint8).any(), "this field lies on an earlier one"
        column.view(np.uint8)[...] = number
    assert layout.slot_bytes % 4096 == 0


@given(first=st.integers(1, 9), slot=st.integers(0, 500))
def test_extents_tile_the_file(first: int, slot: int) -> None:
    slots = SlotMap(SharedFile(), SlotLayout(SCHEMA, 1), first)
    extent = slots.extent(slot)
    assert slot in extent
    assert {slots.extent(other) for other in extent} == {extent}
    assert extent.start == 0 or slots.extent(extent.start - 1).stop == extent.start


def test_two_maps_of_one_file_see_the_same_rows() -> None:
    file = SharedFile()
    ring = SlotRing(file, SlotLayout(SCHEMA, 6), 2)
    other = SlotMap(file, ring.layout, ring.first)
    for slot in range(5):
        assert ring.acquire() == slot
        other.rows(slot)["label"][:] = slot + 10
    lent = [ring.lend(slot, 4) for slot in range(5)]
    assert [rows["label"].tolist() for rows in lent] == [[slot + 10] * 4 for slot in range(5)]


def test_slots_have_their_memory_before_they_are_used() -> None:
    file = SharedFile()
    ring = SlotRing(file, SlotLayout(SCHEMA, 1000), 3)
    for slots in (3, 4):
        assert os.fstat(file.descriptor).st_blocks * 512 >= slots * ring.layout.slot_bytes
        while ring.acquire() < 3:
            pass


def test_a_slot_comes_back_with_its_last_view() -> None:
    ring = SlotRing(SharedFile(), SlotLayout(SCHEMA, 6), 1)
    slot = ring.acquire()
    rows = ring.lend(slot, 6)
    row = torch.from_numpy(rows["image"])[2:3].permute(0, 3, 1, 2)
    array = row.numpy()
    del rows, row
    assert ring.acquire() != slot, "a NumPy view of a view of a tensor still looks at it"
    thread = threading.Thread(target=array.resize, args=())
    thread.start()
    thread.join()
    del array, thread
    gc.collect()
    assert ring.acquire() == slot


def test_many_kept_slots_need_few_descriptors() -> None:
    gc.collect()  # what earlier tests left to the collector
    before = len(os.listdir("/proc/self/fd"))
    ring = SlotRing(SharedFile(), SlotLayout(SCHEMA, 6), 2)
    kept = [ring.lend(ring.acquire(), 6) for _ in range(1000)]
    assert len(os.listdir("/proc/self/fd")) < before + 15
    ring.close()
    kept[999]["label"][:] = 7
    assert kept[999]["label"].sum() == 42, "batches outlive the loader"
    del kept
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_room_is_a_clear_error() -> None:
    huge = SlotLayout(Schema((Field("image", (2**20, 2**20, 3), "uint8"),)), 2**22)
    with pytest.raises(ConfigError, match=r"1 batches of 4194304 rows need \d+ MiB of memory, and this machine has"):
        SlotRing(SharedFile(), huge, 1)


def test_the_file_has_no_name() -> None:
    file = SharedFile()
    link = Path(f"/proc/self/fd/{file.descriptor}").readlink()
    assert "(deleted)" in str(link)
    file.close()
