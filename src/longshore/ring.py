"""A ring of data-parallel training that outlives its members: `Ring` for scripts, and `python -m longshore.ring`."""

from .scheduler.failover.member.ring import Ring

__all__ = ["Ring"]

if __name__ == "__main__":
    from .scheduler.failover.command import main

    raise SystemExit(main())
