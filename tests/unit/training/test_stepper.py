import pytest
import torch

from bayesieve.core.priors import Normal
from bayesieve.engines.map import MAP
from bayesieve.fast import backend
from bayesieve.fast.backend import compiler_missing, should_compile
from bayesieve.training.schedule import Schedule
from runs import fit_toy, toy

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(backend.shutil, "which", lambda _: None)
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda _: None)


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(backend.shutil, "which", lambda name: f"bin/{name}")
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: name)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("device", "long", "short"), [(CPU, 1e10, 1e6), (CUDA, 1e13, 1e11)])
def test_with_a_compiler_long_runs_are_compiled(device, long, short):
    assert compiler_missing(device) is None
    assert should_compile("auto", device, long)
    assert not should_compile("auto", device, short)
    assert should_compile("on", device, 1)
    assert not should_compile("off", device, 1e12)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(("device", "reason"), [(CPU, "no C"), (CUDA, "'triton' is not installed")])
def test_without_a_compiler_only_an_order_to_compile_raises(device, reason):
    assert reason in compiler_missing(device)
    assert not should_compile("auto", device, 1e12)
    assert not should_compile("off", device, 1e12)
    with pytest.raises(ValueError, match=f"compile='on' but .*{reason}.* or use compile='off'"):
        should_compile("on", device, 1e12)


def test_the_compiler_of_the_environment_is_looked_for(monkeypatch):
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(backend.shutil, "which", lambda name: None)
    assert "looked for my-compiler" in compiler_missing(CPU)
    monkeypatch.setattr(backend.shutil, "which", lambda name: name)
    assert compiler_missing(CPU) is None


def test_unknown_modes_raise():
    with pytest.raises(ValueError, match="one of auto, on, off, network; got 'always'"):
        should_compile("always", CPU, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch's own compiler
@pytest.mark.skipif(compiler_missing(CPU) is not None, reason="no C++ compiler")
def test_a_compiled_run_equals_an_eager_one():
    engine = MAP(Normal(0.5), lr=0.02)  # without noise: on a CPU that comes from another stream
    eager = fit_toy(toy(), engine, schedule=Schedule(compile="off"))
    compiled = fit_toy(toy(), engine, schedule=Schedule(compile="on"))
    assert compiled.problem.execution.backend.compiled
    torch.testing.assert_close(compiled.posterior.mean, eager.posterior.mean, rtol=1e-5, atol=1e-6)
