"""Sessions: what is written here is there for every other host."""




from .conftest import Power, read_file, write_file


async def test_flushed_file_is_readable_on_another_host(power: Power) -> None:
    """After flush and clean close a host without local state sees every byte."""
    async with power.session("a") as session:
        ino = write_file(session, b"hello" * 1000)
        head = await session.flush()
        assert head is not None
        await session.close()

    async with power.session("b") as session:
        assert await read_file(session, ino) == b"hello" * 1000
