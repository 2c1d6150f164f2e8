"""Bundles behind Ray Serve: `build` makes an application from a config; each replica serves `create_app`.

    serve run examples/scale_out/ray.yaml

See docs/scale-out.md.
"""

from ...errors import MissingPackageError

try:
    import ray.serve  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingPackageError(str(error.name), "ray") from None

from .application import build

__all__ = ["build"]
