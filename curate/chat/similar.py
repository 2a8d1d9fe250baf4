"""How alike prompts of one kind are; and those that may not stay, because another split holds a near one."""

from collections.abc import Sequence
from operator import attrgetter

from curate.chat.result import Conversation
from manifests.conversations.alike import count_near, held_earlier
from manifests.records import CHAT_KINDS

_USER = attrgetter("user")


def near_prompts(conversations: Sequence[Conversation]) -> dict[str, dict[str, int]]:
    """By kind: how many prompts there are, how many have a near one, and how many a near one in another split."""
    return count_near(conversations, CHAT_KINDS, _USER, "prompts")


def held_by_another(conversations: Sequence[Conversation]) -> dict[str, Conversation]:
    """Those whose prompt is near one of an earlier split (train, validation, test), by id, each with that one."""
    return held_earlier(conversations, CHAT_KINDS, _USER)
