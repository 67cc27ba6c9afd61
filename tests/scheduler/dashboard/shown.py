"""A scheduler that does not run, and its pages."""

from pathlib import Path

import httpx
from fastapi import FastAPI

from longshore.cluster.model.placement import Share
from longshore.scheduler.api.problems import answer_with_problems
from longshore.scheduler.dashboard.entering import static_router
from longshore.scheduler.dashboard.pages import page_router
from longshore.scheduler.dashboard.rendering import refusal_page
from longshore.scheduler.model.job import JobRow, new_job_id
from longshore.scheduler.model.states import AttemptState, Contact, JobState
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import PolicyChoice, SchedulerSettings, ServeOptions
from longshore.scheduler.store.attempts import AttemptRow, NewAttempt, get_attempt
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from longshore.scheduler.store.jobs import NewJob, get_job, insert_job
from longshore.scheduler.store.transitions import AttemptChange, Changes, JobChange, JobStart, write_changes

HOSTILE = '<script>alert("x")</script>'


class Shown:
    """A service and its pages."""

    def __init__(self, folder: Path, policy: str | None = None) -> None:
        choice = PolicyChoice(name=policy, mode="shadow")
        self.service = Service(ServeOptions(SchedulerSettings(folder=folder, policy=choice, open=True)))
        app = FastAPI()
        answer_with_problems(app, refusal_page)
        for router in (page_router(self.service), static_router()):
            app.include_router(router)
        self.app, self.folder = app, folder
        fence = self.service.store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "test", now_s=0.0, ttl_s=60.0))
        assert fence is not None
        self.fence = fence

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://here") as client:
            return await client.get(path)

    async def post(self, path: str, origin: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://here") as client:
            return await client.post(path, headers={"Origin": origin})

    def submit(self, name: str = "trains", gpus: int = 2, **more: object) -> JobRow:
        spec = {"name": name, "gpus": gpus, "command": ["echo", HOSTILE], **more}
        new = NewJob(new_job_id(1e9), name, "ada", spec, 0, gpus, 60.0, 1e9)
        return self.service.store.write(lambda tx: insert_job(tx, new, writer="api"))

    def start(self, job: JobRow, node: str = "rack0-node1", *gpus: int) -> None:
        opened = JobStart(job, NewAttempt("local", (Share(node, gpus or (0, 1)),), 1.0, 0.0), HOSTILE)
        self.write(Changes(opened=[opened]))

    def write(self, changes: Changes) -> None:
        self.service.store.write(lambda tx: write_changes(tx, self.fence, changes, at_s=1e9 + 5.0, writer="scheduler"))

    def runs(self, job: JobRow) -> None:
        """Let the first attempt of a job run."""
        launched = AttemptChange(self._first_attempt(job), AttemptState.LAUNCHED, Contact.OK, "", {})
        self.write(Changes([], [launched]))
        runs = AttemptChange(self._first_attempt(job), AttemptState.RUNNING, Contact.OK, "", {"started_s": 1e9})
        self.write(Changes([JobChange(job.id, JobState.STARTING, JobState.RUNNING, "", {})], [runs]))

    def release(self, job: JobRow) -> None:
        """Let the first attempt of a job end; the job is queued again."""
        stops = JobChange(job.id, JobState.STARTING, JobState.STOPPING, "", {})
        waits = JobChange(job.id, JobState.STOPPING, JobState.QUEUED, "", {})
        self.write(
            Changes([stops], [AttemptChange(self._first_attempt(job), AttemptState.DRAINING, Contact.OK, "", {})])
        )
        released = AttemptChange(self._first_attempt(job), AttemptState.RELEASED, Contact.OK, "", {"ended_s": 1e9})
        self.write(Changes([waits], [released]))

    def try_again(self, job: JobRow) -> None:
        """Release the first attempt of a job and start a second one."""
        self.release(job)
        with self.service.store.read() as tx:
            again = get_job(tx, job.id)
        assert again is not None
        self.start(again)

    def _first_attempt(self, job: JobRow) -> AttemptRow:
        with self.service.store.read() as tx:
            row = get_attempt(tx, job.id, 1)
        assert row is not None
        return row

    def write_log(self, job: JobRow, text: bytes, rank: int = 0) -> None:
        folder = self.folder / "attempts" / f"ls-{job.id}-1"
        folder.mkdir(parents=True)
        (folder / f"rank-{rank}.log").write_bytes(text)
