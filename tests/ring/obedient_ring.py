"""A ring without processes, whose members obey at once."""

from longshore.ring import wire
from longshore.ring.coordinator import SCHEDULERS, Coordinator
from longshore.ring.membership import RingLimits


class Ring:
    """A coordinator whose members obey each message at once."""

    def __init__(self, seats: int, spares: int = 0, limits: RingLimits | None = None) -> None:
        self.now_s = 0.0
        self.coordinator = Coordinator(seats, limits or RingLimits(), 0.0)
        self.sent: list[tuple[int, wire.Message]] = []
        self.quiet: set[int] = set()
        self.idle: set[int] = set()  # members whose script never ends a step
        self.groups = 0
        self.steps: dict[int, int] = {}
        for number in range(seats + spares):
            self.join(number)

    def join(self, number: int) -> None:
        self.coordinator.admit_member(wire.Hello("member", number, f"t{number}"), self.now_s)
        self.answer()

    def answer(self) -> None:
        while self.coordinator.outbox:
            to, message = self.coordinator.outbox.pop(0)
            self.sent.append((to, message))
            if to >= 0 and to not in self.quiet:
                self.obey(to, message)

    def obey(self, number: int, message: wire.Message) -> None:
        step = self.steps.get(number, 0)
        if isinstance(message, wire.Abort):
            self.send(wire.Stopped(number, message.generation, step, awaits_layout=True))
        elif isinstance(message, wire.RingLayout):
            step = self.steps[number] = self.steps.get(message.source, 0)
            endpoints = [f"host:{number}"]
            self.send(wire.MemberReady(number, message.generation, step, groups=self.groups, endpoints=endpoints))
        elif isinstance(message, wire.Resume) and number not in self.idle:
            self.steps[number] = step + 1
            self.send(wire.FirstStep(number, message.generation, step + 1))

    def send(self, message: wire.Message) -> None:
        self.coordinator.receive_member_message(getattr(message, "member", -1), message, self.now_s)

    def launch(self, number: int, rank: int = -1) -> None:
        self.coordinator.receive_launcher_message(wire.MemberStarting(number, rank), self.now_s)
        self.answer()

    def exit(self, number: int) -> None:
        self.coordinator.receive_launcher_message(wire.MemberExited(number, -9), self.now_s)
        self.answer()

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            self.now_s += 0.5
            for number in self.coordinator.members.keys() - self.quiet:
                self.send(wire.Heartbeat(number, self.coordinator.state.generation, 0, self.steps.get(number, 0)))
            self.coordinator.tick(self.now_s)
            self.answer()

    def seat_requests(self) -> list[wire.SeatRequest]:
        return [it for to, it in self.sent if to == SCHEDULERS and isinstance(it, wire.SeatRequest)]

    def order(self) -> list[int]:
        return self.coordinator.state.holders
