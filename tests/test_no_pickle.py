"""No data file is ever unpickled: the modules that may use pickle talk to our own processes, and nothing else does."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_PICKLE = {"datastores/payload.py", "datastores/messages.py", "datastores/contract.py"}  # what they make here
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FILES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("augment", "datastores", "train", "tools")
    for path in (ROOT / folder).glob("*.py")
)


@pytest.mark.parametrize("name", FILES)
def test_it_cannot_unpickle(name: str) -> None:
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.Import):
            used = {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            used = {(node.module or "").partition(".")[0]} & MODULES if not node.level else set()
        elif isinstance(node, ast.keyword):  # numpy.load(allow_pickle=True), torch.load(weights_only=False)
            used = {node.arg} & {"allow_pickle", "weights_only"}
            used = (
                used
                if isinstance(node.value, ast.Constant) and node.value.value is (node.arg == "allow_pickle")
                else set()
            )
        elif isinstance(node, ast.Attribute):
            used = {node.attr} & {"read_pickle", "unpickle"}
        else:
            continue
        assert not used or name in MAY_PICKLE, f"{name}:{node.lineno} uses {used}"  # type: ignore[attr-defined]


def test_those_that_may_are_still_there() -> None:
    assert set(FILES) >= MAY_PICKLE
