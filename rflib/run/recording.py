"""Which keys of a config an experiment reads: a key that nobody reads is a lie in the config."""

from collections.abc import Callable, Iterator
from typing import Any

from rflib.run import record as records


class Recording:
    """Reads like a config (attributes, items, `**section`) and notes the leaves that were read."""

    def __init__(self, config: Any, seen: set[str] | None = None, prefix: str = ""):
        self._config = config
        self._seen: set[str] = set() if seen is None else seen
        self._prefix = prefix

    def __getitem__(self, name: str) -> Any:
        value = self._config[name]
        path = self._prefix + name
        if hasattr(value, "keys"):
            if not value:
                self._seen.add(path)
            return Recording(value, self._seen, f"{path}.")
        self._seen.add(path)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._config.keys():  # noqa: SIM118 (ConfigDict)
            return getattr(self._config, name)  # raises with the config's own words
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self._config:
            return default
        return self[name]

    def __contains__(self, name: str) -> bool:
        return name in self._config

    def __iter__(self) -> Iterator[str]:
        return iter(self._config)

    def __len__(self) -> int:
        return len(self._config)

    def keys(self) -> list[str]:
        return list(self._config.keys())

    def values(self) -> list[Any]:
        return [self[name] for name in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self.keys()]

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dicts; reads everything below."""
        return {
            name: value.to_dict() if isinstance(value, Recording) else value
            for name, value in self.items()
        }

    def unread(self) -> list[str]:
        """The dotted keys that were never read."""
        return sorted(records.flat(self._config).keys() - self._seen)


def unread_keys(main: Callable[[Any, Any], None], config: Any, run: Any) -> list[str]:
    """Runs `main(config, run)` and returns the config keys that it never read.

    `run` is an open run of the plain config, so that its own record counts as no reading.
    """
    recording = Recording(config)
    main(recording, run)
    return recording.unread()
