"""Tests of random operations, kills, outages and takeovers against a model of the filesystem."""

import pytest
from hypothesis import HealthCheck, given, seed, settings

from s3fs_meta.objects.memory import MemoryStore
from tests.model.machine import Step
from tests.model.programs import programs, run

pytestmark = pytest.mark.thorough

_PATIENT = settings(
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.timeout(600)
@settings(_PATIENT, max_examples=25, derandomize=True)
@given(program=programs(30))
def test_filesystem_agrees_with_the_model_after_random_programs(
    template: MemoryStore, program: list[Step]
) -> None:
    """After every program, filesystem and model have identical trees, and fsck finds no damage."""
    run(program, template)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(10))
def test_filesystem_agrees_with_the_model_after_long_random_programs(
    template: MemoryStore, number: int
) -> None:
    """Each of ten seeds generates 100 programs with up to 80 random steps."""

    @seed(number)
    @settings(_PATIENT, max_examples=100)
    @given(program=programs(80))
    def check(program: list[Step]) -> None:
        run(program, template)

    check()
