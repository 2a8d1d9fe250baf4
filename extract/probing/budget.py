"""How long a search may go on."""

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """Attempts left, and CPU seconds, which only large models use up."""

    constructions: int = 150
    forwards: int = 320
    seconds: float = 2.5
    started: float = field(default_factory=time.process_time)

    def late(self) -> bool:
        """Whether the CPU seconds are spent."""
        return time.process_time() - self.started > self.seconds
