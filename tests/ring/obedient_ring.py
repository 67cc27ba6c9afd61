"""A ring without processes, whose members obey at once."""

from longshore.ring import wire
from longshore.ring.rounds import DESKS, Rounds
from longshore.ring.standing import Limits


class Ring:
    """Rounds whose members do at once what they are told."""

    def __init__(self, seats: int, spares: int = 0, limits: Limits | None = None) -> None:
        self.now_s = 0.0
        self.rounds = Rounds(seats, limits or Limits(), 0.0)
        self.told: list[tuple[int, wire.Message]] = []
        self.quiet: set[int] = set()
        self.idle: set[int] = set()  # members whose script never ends a step
        self.groups = 0
        self.steps: dict[int, int] = {}
        for number in range(seats + spares):
            self.join(number)

    def join(self, number: int) -> None:
        self.rounds.joined(wire.Hello("member", number, f"t{number}"), self.now_s)
        self.answer()

    def answer(self) -> None:
        while self.rounds.outbox:
            to, message = self.rounds.outbox.pop(0)
            self.told.append((to, message))
            if to >= 0 and to not in self.quiet:
                self.obey(to, message)

    def obey(self, number: int, message: wire.Message) -> None:
        step = self.steps.get(number, 0)
        if isinstance(message, wire.Abort):
            self.say(wire.Stopped(number, message.generation, step, here=True))
        elif isinstance(message, wire.Form):
            step = self.steps[number] = self.steps.get(message.source, 0)
            ends = [f"host:{number}"]
            self.say(wire.Ready(number, message.generation, step, groups=self.groups, ends=ends))
        elif isinstance(message, wire.Go) and number not in self.idle:
            self.steps[number] = step + 1
            self.say(wire.Running(number, message.generation, step + 1))

    def say(self, message: wire.Message) -> None:
        self.rounds.said(getattr(message, "member", -1), message, self.now_s)

    def launch(self, number: int) -> None:
        self.rounds.launcher_said(wire.Starting(number), self.now_s)
        self.answer()

    def exit(self, number: int) -> None:
        self.rounds.launcher_said(wire.Exited(number, -9), self.now_s)
        self.answer()

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            self.now_s += 0.5
            for number in self.rounds.members.keys() - self.quiet:
                self.say(wire.Beat(number, self.rounds.durable.generation, 0, self.steps.get(number, 0)))
            self.rounds.tick(self.now_s)
            self.answer()

    def wants(self) -> list[wire.Want]:
        return [it for to, it in self.told if to == DESKS and isinstance(it, wire.Want)]

    def order(self) -> list[int]:
        return self.rounds.durable.holders
