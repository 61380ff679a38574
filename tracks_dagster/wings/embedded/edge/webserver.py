"""Dagster's web server behind our guard, by plain imports: takes what the core's own takes."""

from tracks_dagster.wings.embedded.edge.plain_imports import import_plain

if __name__ == "__main__":
    import_plain()
    from tracks_dagster.defs.resources.webserver import main

    main()
