"""Removing a filesystem."""

import json

import pytest

from tests.cli.conftest import Place, Program


def test_name_has_to_be_given(program: Program, place: Place) -> None:
    """Neither silence nor another name removes anything."""
    for words in ([], ["--confirm", "holidays"]):
        assert program.run("destroy", *words, place.url).returncode == 2

    assert (place.bucket / "superblock").exists()


def test_its_own_objects_go_and_foreign_ones_stay(program: Program, place: Place) -> None:
    """Whatever somebody else put below the same prefix is not ours to remove."""
    (place.bucket / "holiday.jpg").write_text("x")

    shown = program.ok("destroy", "--confirm", "photos", place.url)

    assert "1 objects that are not the filesystem's" in shown
    assert (place.bucket / "holiday.jpg").exists()
    assert not (place.bucket / "superblock").exists()
    assert program.run("destroy", "--confirm", "photos", place.url).returncode == 5


def test_json_counts_what_is_gone_and_what_is_not(program: Program, place: Place) -> None:
    """For programs."""
    (place.bucket / "holiday.jpg").write_text("x")

    told = json.loads(program.ok("destroy", "--json", "--confirm", "photos", place.url))

    assert told == {"url": place.url, "removed": 4, "foreign": 1}


def test_place_can_be_used_again(program: Program, place: Place) -> None:
    """Local state is gone too, so that a new filesystem there is not taken for the old one."""
    program.ok("fsck", "-n", place.url)
    program.ok("destroy", "--confirm", place.url, place.url)

    assert list(program.cachedir.iterdir()) == []
    program.ok("mkfs", "--plain", place.url)


@pytest.mark.mount
def test_filesystem_that_is_held_is_refused(program: Program, mounted: Place) -> None:
    """Not below the feet of whoever uses it."""
    done = program.run("destroy", "--confirm", "photos", mounted.url)

    assert done.returncode == 7
    assert "held by host" in done.stderr
