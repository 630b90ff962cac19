"""One file a system: `get_config(variant)` and VARIANTS, each with one line and its cost."""
