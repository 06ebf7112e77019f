"""The shortest ways to the situations of a run that races and stories begin in."""

from __future__ import annotations

from tests.controller.model_units import Command
from tests.controller.model_world import World
from tests.host import Reply


def pending(world: World, name: str = "U1") -> None:
    """A unit in `integration-pending`."""
    dispatched(world, name)
    done(world, name)
    accepted(world, Command("terminalize", name))


def dispatched(world: World, name: str) -> None:
    """A unit in `authoring`."""
    accepted(world, Command("prepare", name))
    world.start_job(world.model.units[name])
    accepted(world, Command("authorize-dispatch", name))


def done(world: World, name: str, word: str = "done") -> None:
    """The unit's job ends."""
    unit = world.model.units[name]
    world.work(unit)
    world.end_work(unit, word, "good" if word == "done" else "none")


def accepted(world: World, command: Command) -> Reply:
    """A step on the way; nothing is looked at."""
    reply = world.hurry(command)
    assert reply.code == 0, repr(reply)
    return reply


def applied(world: World) -> None:
    """A unit applied by hand."""
    pending(world)
    accepted(world, Command("integration-acquire", "U1"))
    accepted(world, Command("preflight", "U1"))
    world.pick(world.model.units["U1"])
    accepted(world, Command("mark-applied", "U1"))


def three_units(world: World) -> None:
    """One unit to integrate, one to terminalize, one whose job failed."""
    accepted(world, Command("prepare", "U3"))
    world.start_job(world.model.units["U3"])
    accepted(world, Command("record-job", "U3"))
    done(world, "U3", "failed")
    accepted(world, Command("sync-job", "U3"))
    dispatched(world, "U2")
    done(world, "U2")
    pending(world)


def locked(world: World) -> None:
    """A unit under its lock, before its apply."""
    pending(world)
    accepted(world, Command("integration-acquire", "U1"))


def verified(world: World) -> None:
    """A unit that the host has verified and committed by hand."""
    applied(world)
    accepted(world, Command("mark-verified", "U1"))
    world.commit_pick(world.model.units["U1"])


def committed(world: World) -> None:
    """A unit committed by hand, not cleaned up."""
    verified(world)
    accepted(world, Command("mark-committed", "U1"))


def preserved(world: World) -> None:
    """A unit whose verification failed."""
    pending(world)
    world.hurry(Command("integrate", "U1", check="false")).expect("BLOCKED")


def claimed(world: World) -> None:
    """A unit that is implemented natively and committed."""
    dispatched(world, "U1")
    done(world, "U1", "failed")
    accepted(world, Command("claim-fallback", "U1"))
    world.write("keep.txt")
    world.commit()


def finished(world: World) -> None:
    """A run whose one unit is committed."""
    pending(world)
    accepted(world, Command("integrate", "U1"))


def new(world: World) -> None:
    """A run without a unit."""


WAYS = (new, new, three_units, pending, locked, applied, verified, committed, preserved, claimed, finished)
