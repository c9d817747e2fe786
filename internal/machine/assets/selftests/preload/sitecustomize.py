# Imported by each Python of the guest, before its program (docs.python.org/3/library/site.html). It
# raises the time limits of the tests' own library (net/lib/py/utils.py), such as 5 s until a program
# listens on its port, because busy processors may emulate the guest's: on a slow machine by the same
# factor as vnic's limits. A test that passes does not take longer.
import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import sys

TIMES = 4 * float(os.environ.get("VNIC_SLOW", "1"))
LIMITS = {"fd_read_timeout": "timeout", "wait_port_listen": "deadline", "wait_file": "deadline", "cmd.process": "timeout"}


def stretch(function, name):
    signature = inspect.signature(function)

    @functools.wraps(function)
    def longer(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.arguments.get(name):
            bound.arguments[name] *= TIMES
        return function(*bound.args, **bound.kwargs)

    return longer


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != "net.lib.py.utils":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            for place, name in LIMITS.items():
                owner, _, function = place.rpartition(".")
                owner = getattr(module, owner, None) if owner else module
                if hasattr(owner, function):
                    setattr(owner, function, stretch(getattr(owner, function), name))

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
