import pytest

from logn.cli import main


@pytest.mark.parametrize("verb", main.RESEARCH)
def test_every_verb_of_the_research_package_loads_and_has_help(capsys, verb):
    assert main.execute([verb, "--help"]) == 0
    assert "Usage: logn" in capsys.readouterr().out
