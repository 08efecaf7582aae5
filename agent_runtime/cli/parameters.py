"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[
    str, typer.Argument(metavar="TARGET", show_default=False, help="module:variable, file.py:variable, or shop.")
]
Db = Annotated[
    str | None,
    typer.Option("--db", metavar="DB", help="Path or SQLAlchemy URL of the traces, if not the usual."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[str | None, typer.Option(metavar="MODEL", help="Hub id, folder, GGUF file, or openai:NAME@URL.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="Where the model runs: auto, cuda or cpu.")]
