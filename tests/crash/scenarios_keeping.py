"""Scenarios of the commands that tidy up among runs, beside a run in work: `gc` and `doctor --fix`."""

from __future__ import annotations

import shutil

from tests.crash.scenarios import SCENARIOS as SCENARIOS
from tests.crash.scenarios import begin, pending, scenario
from tests.crash.scene import Scene, small_work


def _beside(scene: Scene) -> Scene:
    """A finished run `r0` and, in `r1`, a pending unit."""
    scene.init("r0").expect("READY")
    scene.pending("U0", small_work, run="r0")
    scene.integrate("U0", run="r0").expect("UNIT_COMMITTED")
    scene.call("verify-run", "--run-id", "r0", "--", "true").expect("RUN_VERIFIED")
    begin(scene)
    pending(scene)
    return scene


@scenario("gc")
def gc_of_a_finished_run(scene: Scene) -> list[str]:
    """A finished run goes; the one in work stays. Whatever is left of the first, a `doctor --fix` removes."""
    _beside(scene)
    scene.scribble()
    argv = ("gc", "--older-than-days", "0", "--yes")
    scene.notes["again"] = [(argv, ("COLLECTED", "WOULD_COLLECT")), (("doctor", "--fix"), ("HEALTHY",))]
    return scene.controller(*argv)


@scenario("doctor --fix")
def doctor_fix(scene: Scene) -> list[str]:
    """A deleted run left a half-made worktree, a killed command its leavings; the manifest of `r1` is gone."""
    _beside(scene)
    scene.init("r2").expect("READY")
    scene.prepare("U2", run="r2").expect("PREPARED")
    for gitdir in (scene.repo / ".git" / "worktrees").glob("*/gitdir"):
        if gitdir.read_text().startswith(f"{scene.run_dir('r2')}/"):
            (gitdir.parent / "HEAD").unlink()
    shutil.rmtree(scene.run_dir("r2"))
    left = scene.runs / ".tmp-init-0123456789ab"
    left.mkdir(mode=0o700)
    (left / "source").mkdir(mode=0o700)
    scene.private(scene.runs / ".locks" / ".tmp-1-ab", "")
    (scene.run_dir() / "manifest.json").unlink()
    scene.scribble()
    argv = ("doctor", "--fix")
    scene.notes["again"] = [(argv, ("HEALTHY",))]
    return scene.controller(*argv)
