"""One torch thread, and hypothesis with fixed examples: a test that passes once passes again."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "bayesieve", deadline=None, derandomize=True, max_examples=50, database=None
)
hypothesis.settings.load_profile("bayesieve")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
