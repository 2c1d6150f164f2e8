"""`optimum-cli export specexport`: `specexport build` for users of optimum's exporters.

optimum imports each module of the namespace package `optimum.commands.register` when its command starts, and the wheel
installs this one there. So this folder has no `__init__.py`, and nothing heavy is imported before `run`.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo
from optimum.commands.export.base import ExportCommand


class SpecExportCommand(BaseOptimumCLICommand):
    COMMAND = CommandInfo(name="specexport", help="Compile a model and its draft for speculative decoding.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("-m", "--model", required=True, help="Target, as `specexport build --target`.")
        parser.add_argument("--draft", help="Draft, as `specexport build --draft`.")
        parser.add_argument("output", help="Bundle folder to create.")
        parser.add_argument(
            "options", nargs=REMAINDER, help="Options of `specexport build`, after the output: --precision int8, ..."
        )

    def run(self) -> None:
        """Run `specexport build`, with its exit code; the bundle's manifest records that command line."""
        from specexport.__main__ import main

        chosen = self.args
        draft = ["--draft", chosen.draft] if chosen.draft is not None else []
        sys.argv = ["specexport", "build", "--target", chosen.model, *draft, "--output", chosen.output, *chosen.options]
        main()


REGISTER_COMMANDS = [(SpecExportCommand, ExportCommand)]
