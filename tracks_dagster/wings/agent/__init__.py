"""A door for agents: the answers of the commands, and a few acts, over the Model Context Protocol."""

from tracks_dagster.wing import Command, Wing

WING = Wing(
    commands={
        "mcp": Command(
            module="edge.mcp",
            summary="A door for an agent: the same answers over MCP, acts by name.",
            group="While it trains",
            after="curves",
        ),
    },
    extra="mcp",
    packages=("mcp",),
)
