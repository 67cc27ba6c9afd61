"""A ring of data-parallel training that outlives its members: `Ring` for scripts, and `python -m longshore.ring`."""

if __name__ == "__main__":  # A signal that comes while the rest is imported ends this process without a traceback.
    from .scheduler.failover.processes.wishes import end_at_once_if_asked

    end_at_once_if_asked()
    from .scheduler.files.paths import end_if_gone

    end_if_gone("longshore.ring")

from .scheduler.failover.member.ring import Ring

__all__ = ["Ring"]

if __name__ == "__main__":
    from .scheduler.failover.command import main

    raise SystemExit(main())
