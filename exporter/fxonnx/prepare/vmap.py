from typing import Any


def is_vmap(t: Any) -> bool:
    return getattr(t, "__module__", "") == "torch._functorch.predispatch"


def inline_vmap(o: Any) -> None: ...
