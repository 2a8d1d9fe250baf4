"""The sites of a network: where a block may take a submodule's place, or stand after one, and why not elsewhere.

What was observed of both decides; whether the block then runs at a site's sizes is told by building it there
(`extract.migrate.network.fitting`). A block of another number of channels gets a 1x1 convolution before or after it, or
a linear layer where the channels are the last dimension. A block of tokens, or of maps with the channels last, is
handed maps in that view, by a module around it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from extract.migrate.source_block import Donor, Shape
from extract.migrate.widths import calls
from extract.specs.make import Call

How = Literal["replace", "after"]

_MAPS = 4  # dimensions

#: How maps of N x C x H x W are handed to a block: as they are; as tokens, N x L x C; with the channels last.
View = Literal["", "tokens", "last"]


@dataclass(frozen=True, slots=True)
class Place:
    """One submodule of a network; see `extract.migrate.network.observing.observe`."""

    path: str
    steps: str
    kind: str
    within: tuple[str, int]
    parameters: int
    children: int
    shared: bool
    calls: int
    single: bool
    inputs: tuple[tuple[Shape, ...], ...]  # by case
    outputs: tuple[tuple[Shape, ...], ...]

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Place":
        """As the sandbox tells it."""
        shapes = {
            name: tuple(tuple(tuple(shape) for shape in case) for case in told[name]) for name in ("inputs", "outputs")
        }
        return cls(**{**told, **shapes, "within": tuple(told["within"])})


@dataclass(frozen=True, slots=True)
class Filling:
    """A block in a site: how it is constructed, and the channels that layers before and after it change.

    `before`: (from, to), None where the block takes the site's channels; `after` likewise. `axis`: of the channels, as
    the block has them, `rank` the number of its dimensions.
    """

    call: Call
    before: tuple[int, int] | None
    after: tuple[int, int] | None
    axis: int
    rank: int
    view: View = ""

    @property
    def adapters(self) -> int:
        """Modules beside the block."""
        return (self.before is not None) + (self.after is not None) + bool(self.view)

    def adapter(self, channels: tuple[int, int]) -> str:
        """The layer that changes channels, as an expression of `nn`."""
        if self.axis == self.rank - 1 or self.rank not in (3, 4, 5):
            return f"nn.Linear({channels[0]}, {channels[1]})"
        return f"nn.Conv{self.rank - 2}d({channels[0]}, {channels[1]}, 1)"


@dataclass(frozen=True, slots=True)
class Site:
    """One way of putting a block into a network.

    Attributes:
        how: instead of the submodule, or after it.
        before: what the block is given there, by case.
        after: what must come out.
        reason: why the block does not fit; empty where it does.
        filling: how it fits.
        view: in which the block is handed what is there.
    """

    place: Place
    how: How
    before: tuple[Shape, ...]
    after: tuple[Shape, ...]
    reason: str = ""
    filling: Filling | None = None
    view: View = ""

    @property
    def name(self) -> str:
        """What `--site` calls it: `after:features.3`."""
        return f"{self.how}:{self.place.path}"

    @property
    def shapes(self) -> str:
        """What goes in and comes out, in the first case."""
        return f"{sized(self.before[0])} -> {sized(self.after[0])}" if self.before else "no single shape"


def sized(shape: Sequence[int]) -> str:
    """A shape to print."""
    return "x".join(map(str, shape))


def sites_of(places: Sequence[Place], donor: Donor) -> list[Site]:
    """All sites, in the order of the forward pass, those with a reason where what was observed speaks against them."""
    return [_site(place, how, donor) for place in places for how in ("replace", "after")]


def _site(place: Place, how: Any, donor: Donor) -> Site:
    reason = _faults(place)
    if reason:
        return Site(place, how, (), (), reason)
    after = tuple(shapes[0] for shapes in place.outputs)
    before = after if how == "after" else tuple(shapes[0] for shapes in place.inputs)
    view = _view(before, after, donor)
    seen_before, seen_after = ([viewed(shape, view) for shape in shapes] for shapes in (before, after))
    return Site(place, how, before, after, _mismatch(seen_before, seen_after, donor, view), view=view)


def _view(before: Sequence[Shape], after: Sequence[Shape], donor: Donor) -> View:
    """How a block of another layout can be handed the maps of a site; as they are where it cannot."""
    maps = all(len(shapes[0]) == _MAPS and channels_axis(shapes) == 1 for shapes in (before, after))
    last = all(len(shape) == donor.axis + 1 for shape in donor.cases[0])
    if not (maps and last):
        return ""
    return {_MAPS - 1: "tokens", _MAPS: "last"}.get(donor.axis + 1, "")  # type: ignore[return-value]


def viewed(shape: Shape, view: View) -> Shape:
    """A shape of maps in a view."""
    if not view:
        return shape
    images, channels, height, width = shape
    return (images, height * width, channels) if view == "tokens" else (images, height, width, channels)


def _faults(place: Place) -> str:
    """Why no block can be put there; empty where one can."""
    if not place.steps:
        return "no Python expression reaches it"
    if place.shared:
        return "is one module under two names"
    if not place.single:
        return "takes or gives something else than one tensor of real numbers"
    if any(len(case) != 1 for case in (*place.inputs, *place.outputs)):
        return f"is called {place.calls} times, with tensors of several shapes"
    return ""


def _mismatch(before: Sequence[Shape], after: Sequence[Shape], donor: Donor, view: View) -> str:
    """Why what was seen of the block speaks against the site; empty where it does not."""
    (took, gave), axis = donor.cases[0], donor.axis
    if len(before[0]) != len(took):
        return f"hands on {len(before[0])} dimensions, and the block takes {len(took)}: {sized(took)}"
    if len(after[0]) != len(gave):
        return f"gives {len(after[0])} dimensions, and the block gives {len(gave)}: {sized(gave)}"
    if len(before[0]) < 2:
        return "has no channels"
    for shapes in (before, after):
        if len({shape[axis] for shape in shapes}) > 1:
            found = " and ".join(str(shape[axis]) for shape in shapes)
            other = axis if view else channels_axis(shapes)
            if other != axis:
                return f"has its channels in dimension {other}, and the block in dimension {axis}"
            return f"its width is not fixed: {found} in two constructions"
    if not view and channels_axis(before) != axis:
        return f"has its channels in dimension {channels_axis(before)}, and the block in dimension {axis}"
    return ""


def channels_axis(shapes: Sequence[Shape]) -> int:
    """The dimension of the channels: the only one that stays while others follow the image, else the usual one."""
    rank = len(shapes[0])
    moves = [len({shape[place] for shape in shapes}) > 1 for place in range(rank)]
    if rank > 2 and moves[1] != moves[-1]:
        return rank - 1 if moves[1] else 1
    return 2 if rank == 3 else 1


# -- what to try there -----------------------------------------------------------------------------------------------


def question(site: Site, donor: Donor) -> dict[str, Any]:
    """What the sandbox is to try at a site: calls of the constructor, each with the width at which it is run."""
    return {
        "before": [list(viewed(shape, site.view)) for shape in site.before],
        "after": [list(viewed(shape, site.view)) for shape in site.after],
        "axis": donor.axis,
        "attempts": [
            {
                "call": f"{donor.name}({call.text()})",
                "args": list(call.args),
                "kwargs": dict(call.kwargs or {}),
                "width": w,
            }
            for call, w in attempts(site, donor)
        ],
    }


def attempts(site: Site, donor: Donor) -> Iterator[tuple[Call, int]]:
    """Calls of the constructor with the width that the block is handed: the site's, then its own.

    Of each the arguments that worked come first, then those of them alone that have no default.
    """
    (took, gave), axis = donor.cases[0], donor.axis
    seen_in, seen_out = took[axis], gave[axis]
    before, after = viewed(site.before[0], site.view), viewed(site.after[0], site.view)
    want_in, want_out = before[axis], after[axis]
    channels = {seen_in: [want_in]} if seen_in != seen_out else {seen_in: list(dict.fromkeys([want_in, want_out]))}
    channels.setdefault(seen_out, [want_out])
    pairs = zip(took, before, strict=True)
    sizes = {old: new for place, (old, new) in enumerate(pairs) if place not in (0, axis) and old not in channels}
    inits = [donor.init, *([donor.needed] if donor.needed.text() != donor.init.text() else [])]
    for init in inits:
        yield from ((call, want_in) for call in calls(init, donor.constructor, channels, sizes))
    if want_in != seen_in:
        for init in inits:
            yield from ((call, seen_in) for call in calls(init, donor.constructor, {}, sizes))


def answered(site: Site, donor: Donor, answer: Mapping[str, Any]) -> Site:
    """The site with what the sandbox says of it."""
    if not answer["fits"]:
        return replace(site, reason=answer["reason"])
    axis, width = donor.axis, answer["width"]
    given, wanted = viewed(site.before[0], site.view)[axis], viewed(site.after[0], site.view)[axis]
    filling = Filling(
        Call(tuple(answer["args"]), dict(answer["kwargs"])),
        (given, width) if given != width else None,
        (answer["gives"], wanted) if answer["gives"] != wanted else None,
        axis,
        len(donor.cases[0][0]),
        site.view,
    )
    return replace(site, filling=filling)


def best_first(sites: Sequence[Site], donor: Donor, parameters: int) -> list[Site]:
    """The sites that fit, the best one first: fewest modules beside the block; after a submodule for a block that
    keeps the shape of what it is given, else in place of one; called once in a forward; in place of the submodule whose
    parameters are nearest in number, after the one nearest to the middle of the forward pass; then in its order.

    Args: parameters: of the block with the arguments that worked.
    """
    fitting = [site for site in sites if site.filling is not None]
    preferred = "after" if donor.keeps_shape else "replace"
    order = {site.place.path: number for number, site in enumerate(sites)}
    middle = max(order.values(), default=0) / 2

    def key(site: Site) -> tuple[float, ...]:
        assert site.filling is not None
        here = order[site.place.path]
        more, less = max(site.place.parameters, parameters) + 1, min(site.place.parameters, parameters) + 1
        near = abs(here - middle) if site.how == "after" else more / less
        return site.filling.adapters, site.how != preferred, site.place.calls > 1, near, here

    return sorted(fitting, key=key)
