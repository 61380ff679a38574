"""Dagster's web server of a home: `python -m resources.webserver` with the options of its own."""

from resources.plain_imports import import_plain


def main() -> None:
    """Serve the UI until SIGTERM or Ctrl-C."""
    import_plain()
    from dagster_webserver.cli import main as serve

    serve()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
