"""Every error that the API answers with. docs/api.md has the same table, which a test compares."""

from typing import NamedTuple


class Known(NamedTuple):
    """An error."""

    status: int  # of HTTP
    meaning: str


CODES = {
    "invalid": Known(422, "A parameter or the body is not as it should be; `detail` names the place."),
    "bad-request": Known(400, "The request is no HTTP or JSON that can be read."),
    "bad-cursor": Known(400, "The cursor is not one that a list has given."),
    "bad-header": Known(400, "A header such as `If-Match` or `Last-Event-ID` cannot be read."),
    "unauthorized": Known(401, "There is no token, or one that is not valid."),
    "forbidden": Known(403, "The role of the token does not allow it."),
    "wrong-host": Known(403, "A browser sent it for another site, or an open scheduler was asked by another name."),
    "not-found": Known(404, "There is nothing at this path."),
    "no-such-job": Known(404, "There is no job of this id, or it is somebody else's."),
    "no-such-node": Known(404, "The cluster file has no node of this name."),
    "no-such-attempt": Known(404, "The job has no attempt of this number, or none yet."),
    "no-such-log": Known(404, "The attempt has no rank of this number, or its log is gone."),
    "no-such-token": Known(404, "Its owner has no valid token of this name."),
    "method-not-allowed": Known(405, "The path knows other methods."),
    "key-in-flight": Known(409, "A request with this `Idempotency-Key` is being worked on; ask again soon."),
    "ended": Known(409, "The job has ended or is being cancelled, which this request cannot undo."),
    "not-in-quarantine": Known(409, "It is not in quarantine, or cannot be checked while jobs use it."),
    "no-checks": Known(409, "No checks are available that could clear a quarantine."),
    "older-attempt": Known(409, "A later attempt of the job has begun, so what this one says does not count."),
    "token-exists": Known(409, "Its owner has a valid token of this name."),
    "stale": Known(412, "The job is not what `If-Match` says any more: read it again."),
    "too-much": Known(413, "The body is larger than is allowed: 256 KiB, for the extender more."),
    "compressed": Known(415, "The extender was sent a compressed body."),
    "beyond-the-end": Known(416, "The log does not reach to this offset."),
    "key-reused": Known(422, "This `Idempotency-Key` was used for another job."),
    "too-large": Known(422, "The job asks for more GPUs than there are, or than one user may have."),
    "too-high": Known(403, "Only operators give a job so high a priority."),
    "unconditional": Known(428, "A change needs `If-Match`: the job's `ETag`, or `*`."),
    "too-many-queued": Known(429, "The user has as many queued jobs as are allowed."),
    "too-many-followers": Known(429, "As many streams are open as are allowed."),
    "too-many-tokens": Known(429, "The user has as many valid tokens as are allowed; operators may make more."),
    "internal": Known(500, "A fault of Longshore; its log has the traceback."),
    "store-unreachable": Known(503, "The store does not answer. Jobs run on."),
    "no-room": Known(507, "The disk of the scheduler is full: no job is taken in. Jobs run on, and can be cancelled."),
    "not-ready": Known(503, "No scheduler leads, or it has stopped ticking."),
    "not-in-sync": Known(503, "The extender has not yet been told of all pods and nodes."),
    "unavailable": Known(503, "Something that Longshore drives does not answer."),
}
