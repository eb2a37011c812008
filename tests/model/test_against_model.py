"""Random operations, crashes, outages and moves: the filesystem does what the model does."""

from hypothesis import HealthCheck, given, settings

from s3fs_meta.objects.memory import MemoryStore

from .machine import Step
from .programs import programs, run

_PATIENT = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@settings(_PATIENT, max_examples=40)
@given(program=programs(30))
def test_filesystem_does_what_the_model_does(template: MemoryStore, program: list[Step]) -> None:
    """Every program leaves the tree that the model has, and fsck finds nothing."""
    run(program, template)
