"""`python -m tsc serve`, or `python -m tsc.serve` where nothing that compiles is installed: a folder of Packages behind the
Open Inference Protocol."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tsc.errors import InputError
from tsc.serve.settings import ServerOptions

_MEGA = 1 << 20
_DEFAULTS = ServerOptions(Path())
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
PORT = click.IntRange(0, 65535)
SECONDS = click.FloatRange(0, 86_400, min_open=True)


@click.command("serve")
@click.argument("folder", type=FOLDER)
@click.option("--host", default=_DEFAULTS.host, show_default=True, help="Where to listen; 0.0.0.0 is everywhere.")
@click.option("--http-port", type=PORT, default=_DEFAULTS.http_port, show_default=True, help="0 is any free one.")
@click.option("--grpc-port", type=PORT, default=_DEFAULTS.grpc_port, show_default=True, help="0 is any free one.")
@click.option("--no-grpc", is_flag=True, help="HTTP alone.")
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes that run models.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of each worker; default: the cores are shared.")
@click.option("--body-mb", type=click.IntRange(min=1), default=_DEFAULTS.body_bytes // _MEGA, show_default=True,
              help="The longest body.")
@click.option("--run-mb", type=click.IntRange(min=1), default=_DEFAULTS.run_bytes // _MEGA, show_default=True,
              help="The memory that one run may take beside the weights.")
@click.option("--requests", type=click.IntRange(min=1), default=_DEFAULTS.requests, show_default=True,
              help="Requests that may wait or run; more are told to come again (429).")
@click.option("--deadline", type=SECONDS, default=_DEFAULTS.deadline, show_default=True,
              help="Seconds after which a request is given up (504).")
@click.option("--grace", type=SECONDS, default=_DEFAULTS.grace, show_default=True,
              help="Seconds for requests that run when all is to end.")
@click.option("--trust", type=click.Path(exists=True, path_type=Path), multiple=True,
              help="A public key, or a folder of them: models have to be signed by one of these. Repeatable.")
def serve_command(folder: Path, no_grpc: bool, grpc_port: int, body_mb: int, run_mb: int, trust: tuple[Path, ...],
                  **options: Any) -> None:
    """Serve the Packages in FOLDER: NAME.tscpack, or NAME/VERSION/any.tscpack, and NAME.toml or NAME/model.toml with
    settings of how requests run together (requests = 32, run_ms = 20, delay_ms = 0). Files that come, go or change are noticed
    while it runs.

    The Open Inference Protocol over HTTP and gRPC, /metrics for Prometheus, a page at /. Packages are native code: whoever can
    write into FOLDER runs code here, unless --trust says whose signatures count. Needs tsc-compiler[serve].
    """
    try:
        server = import_module("tsc.serve.server")
    except ModuleNotFoundError as error:
        raise InputError(f"serving needs {error.name}; pip install 'tsc-compiler[serve]'") from error
    server.log_to_stderr()
    told = ServerOptions(folder, grpc_port=None if no_grpc else grpc_port, body_bytes=body_mb * _MEGA, run_bytes=run_mb * _MEGA,
                         trust=list(trust) or None, **options)
    server.run(told, lambda http, grpc: click.echo(
        f"http://{told.host}:{http}" + ("" if grpc is None else f" and grpc://{told.host}:{grpc}")))
