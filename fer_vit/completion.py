"""Completion of commands and options in a shell, which `fer-vit --completion SHELL` prints."""

import argparse
from contextlib import suppress

import shtab

from fer_vit.cli import PLAIN_VERBS, VERBS, import_verb, variants, verb_parser
from fer_vit.errors import FerVitError


def completion_script(shell: str) -> str:
    """Returns a script that completes `fer-vit` in a shell, such as bash or zsh.

    A command that needs a missing extra is completed without its options. So are the commands of
    LightningCLI, whose options depend on classes.

    Raises:
        FerVitError: There is no completion for the shell.
    """
    if shell not in shtab.SUPPORTED_SHELLS:
        shells = ", ".join(shtab.SUPPORTED_SHELLS)
        raise FerVitError(f"Expected a shell of {shells}, but got {shell or 'none'}.")
    parser = argparse.ArgumentParser(prog="fer-vit")
    commands = parser.add_subparsers()
    for verb, meaning in VERBS.items():
        options = []
        names: list[str] = []
        if verb in PLAIN_VERBS:
            with suppress(ModuleNotFoundError):  # an extra is missing
                module = import_verb(f"fer_vit.commands.{verb}")
                names += variants(module)
                options += [verb_parser(verb, module, name) for name in names or [""]]
        if names:
            nested = commands.add_parser(verb, help=meaning).add_subparsers()
            for name, of_name in zip(names, options, strict=True):
                nested.add_parser(name, parents=[of_name], add_help=False)
        else:
            commands.add_parser(verb, help=meaning, parents=options, add_help=not options)
    return str(shtab.complete(parser, shell))
