"""The repository root is the package `specexport`, whose packages are found here; pyproject.toml has the rest."""

from setuptools import find_packages, setup  # type: ignore[import-untyped]

setup(
    script_name="setup.py",  # this file, which is then left out of the wheel
    packages=["specexport", *(f"specexport.{name}" for name in find_packages()), "optimum.commands.register"],
)
