"""Where data live."""

from bayesieve.data.files import cache_dir


def test_the_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("BAYESIEVE_CACHE", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"
    monkeypatch.delenv("BAYESIEVE_CACHE")
    assert cache_dir().name == "bayesieve"
