"""The runtime type checker of the tests: beartype, with an int wherever a float is asked for."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
