"""Pins: objects that stay in the bucket because kept points need them."""

import random

import pytest

from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.model import Epoch, ObjectKey, PackId, Txg
from s3fs_meta.sync.history.kept.kept_points import KeptPoints, UnreadablePoint
from s3fs_meta.sync.history.kept.pins import NO_PINS, NOTHING_RENUMBERED, KeptPointPins, Renumbered
from tests.codec.kept_points import point_of

KEYRING = Keyring(None, bytes(range(32)))
END = Txg(1000)


def point(txg: int, image: int, next_pack: int = 9, epoch: int = 3) -> KeptPoint:
    """Return a kept point."""
    return point_of(KEYRING, f"n{txg}", txg=txg, image=image, next_pack=next_pack, epoch=epoch)


def pins_of(*points: KeptPoint, renumbered: Renumbered = NOTHING_RENUMBERED) -> KeptPointPins:
    """Return the pins of kept points whose images are complete."""
    images = {one.image.key for one in points}
    return KeptPointPins(KeptPoints(points), images, END, renumbered)


def test_nothing_is_pinned_without_kept_points() -> None:
    assert not NO_PINS.needs_pack(PackId(1), Txg(5))
    assert not NO_PINS.needs_stray_pack(Epoch(0))
    assert not NO_PINS.needs_changelog(Txg(0))
    assert not NO_PINS.needs_changelog(Txg(1))
    assert not NO_PINS.needs_level(Txg(1), Txg(5))
    assert not NO_PINS.needs_image(Txg(0))


def test_kept_point_pins_packs_that_died_after_the_txg_of_the_point() -> None:
    """A pack that died in the txg of a point is not pinned: the point needs none of its blocks."""
    pins = pins_of(point(42, 40, next_pack=9))
    assert pins.needs_pack(PackId(8), Txg(43))
    assert not pins.needs_pack(PackId(8), Txg(42))
    assert not pins.needs_pack(PackId(9), Txg(43))


def test_pack_is_pinned_only_if_a_kept_point_falls_within_its_lifetime() -> None:
    """For random packs and points, the pinned packs are those that live at some kept point."""
    rnd = random.Random(7)
    for _ in range(200):
        txgs = sorted(rnd.sample(range(1, 60), rnd.randrange(6)))
        bounds = sorted(rnd.randrange(1, 60) for _ in txgs)
        points = [point(txg, 1, bound) for txg, bound in zip(txgs, bounds, strict=True)]
        pins = pins_of(*points)
        for _ in range(50):
            pack, died = PackId(rnd.randrange(1, 60)), Txg(rnd.randrange(1, 60))
            wanted = any(one.txg < died and pack < one.next_pack for one in points)
            assert pins.needs_pack(pack, died) == wanted


def test_point_of_an_earlier_txg_that_is_kept_later_pins_its_packs() -> None:
    """A point for an earlier txg also pins packs that were created before the point was kept."""
    pins = pins_of(point(10, 1, next_pack=50), point(20, 1, next_pack=30))
    assert pins.needs_pack(PackId(40), Txg(11))
    assert pins.needs_pack(PackId(40), Txg(25))


def test_kept_points_from_before_a_repair_pin_a_renumbered_pack() -> None:
    repaired = Renumbered(Txg(50), PackId(80))
    pins = pins_of(point(42, 40, next_pack=9), point(60, 55, next_pack=70), renumbered=repaired)
    assert pins.needs_pack(PackId(79), Txg(51))
    assert not pins.needs_pack(PackId(80), Txg(90))
    assert not pins.needs_pack(PackId(79), Txg(42))
    later = pins_of(point(60, 55, next_pack=70), renumbered=repaired)
    assert not later.needs_pack(PackId(79), Txg(90))


def test_kept_point_pins_changelogs_and_level_objects_after_its_image() -> None:
    pins = pins_of(point(42, 40), point(45, 40), point(80, 70))
    assert [txg for txg in range(100) if pins.needs_changelog(Txg(txg))] == [
        *range(40, 46),
        *range(70, 81),
    ]
    assert pins.interval_of(Txg(44)) == (40, 45)
    assert pins.interval_of(Txg(46)) is None
    assert pins.intervals == {(40, 45), (70, 80)}
    assert pins.needs_level(Txg(41), Txg(45))
    assert not pins.needs_level(Txg(40), Txg(44))
    assert not pins.needs_level(Txg(41), Txg(46))
    assert pins.manifests == {one.image.key for one in (point(42, 40), point(80, 70))}
    assert not pins.needs_image(Txg(40))


def test_kept_point_with_an_incomplete_image_pins_all_earlier_metadata() -> None:
    """A restore may need an older image or pieces of other images, so all of them are pinned."""
    broken = point(42, 40)
    pins = KeptPointPins(KeptPoints((broken,)), set(), END)
    assert pins.broken == [broken]
    assert pins.needs_image(Txg(0))
    assert pins.needs_image(Txg(42))
    assert not pins.needs_image(Txg(43))
    assert pins.needs_changelog(Txg(1))
    assert pins.needs_level(Txg(1), Txg(25))
    assert not pins.needs_changelog(Txg(43))


def test_unreadable_kept_point_pins_every_object_that_the_point_may_need() -> None:
    one = UnreadablePoint(ObjectKey("kept/x"), Txg(42), "damaged")
    pins = KeptPointPins(KeptPoints((), (one,)), set(), END)
    assert pins.needs_pack(PackId(10**9), Txg(43))
    assert not pins.needs_pack(PackId(1), Txg(42))
    assert pins.needs_stray_pack(Epoch(10**9))
    assert pins.needs_image(Txg(42))


@pytest.mark.parametrize("txg", [1001, 10**12])
def test_kept_point_beyond_the_end_of_the_chain_pins_no_metadata(txg: int) -> None:
    """A kept point with a forged key or of another history must not prevent all deletions."""
    one = UnreadablePoint(ObjectKey("kept/x"), Txg(txg), "damaged")
    pins = KeptPointPins(KeptPoints((point(txg, 990),), (one,)), set(), END)
    assert not pins.needs_image(Txg(5))
    assert not pins.needs_changelog(Txg(5))
    assert not pins.needs_pack(PackId(1), END)
    assert pins.broken == []


def test_kept_point_does_not_pin_later_packs_without_a_row() -> None:
    pins = pins_of(point(42, 40, epoch=3), point(44, 40, epoch=4))
    assert pins.needs_stray_pack(Epoch(4))
    assert not pins.needs_stray_pack(Epoch(5))
