# One image for everything on a cluster: web server, daemon, code server, run workers, gangs.
#
#   docker build --build-arg VARIANT=cuda --build-arg GIT_COMMIT=$(git rev-parse HEAD) \
#     --build-arg VERSION=$(.venv/bin/python -m setuptools_scm) -t IMAGE .
#
# VARIANT=cuda takes the plain torch wheel and its CUDA libraries (gigabytes); VARIANT=cpu takes the
# CPU build, which lies on an index of its own: pass that one as PIP_EXTRA_INDEX_URL.
ARG PYTHON_VERSION=3.11
FROM python:${PYTHON_VERSION}-slim AS build

ARG VARIANT=cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /app
COPY pyproject.toml constraints.txt ./
# The packages alone, in a layer of their own: a change of the code does not install them again.
RUN case "$VARIANT" in \
      cpu) torch="torch==$(sed -n 's/^torch==//p' constraints.txt)+cpu" ;; \
      cuda) torch="torch==$(sed -n 's/^torch==//p' constraints.txt)" ;; \
      *) echo "VARIANT is $VARIANT; there are cpu and cuda." >&2; exit 2 ;; \
    esac \
    && python -m venv /opt/venv \
    && /opt/venv/bin/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; extras = project["optional-dependencies"]; print(*project["dependencies"], *extras["control"], *extras["kubernetes"], *extras["gpu"], sep="\n")' > requirements.txt \
    && /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt "$torch" -r requirements.txt
COPY workspace.yaml LICENSE ./
COPY assets assets
COPY docs/runbooks docs/runbooks
COPY resources resources
COPY sensors sensors
COPY tracks_dagster tracks_dagster
ARG GIT_COMMIT
# The tags are not copied; records name the version.
ARG VERSION=0.dev0
RUN SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION" /opt/venv/bin/pip install --no-cache-dir --no-deps --editable . \
    && rm requirements.txt && printf '%s\n' "$GIT_COMMIT" > GIT_COMMIT \
    && /opt/venv/bin/python -m compileall -q .

FROM python:${PYTHON_VERSION}-slim

# Rootless: a gang needs no right on its node. The numeric id lets `runAsNonRoot` be checked.
RUN groupadd --gid 10001 tracks \
    && useradd --uid 10001 --gid tracks --create-home tracks \
    && install -d -o tracks -g tracks /tracks /opt/dagster/dagster_home
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
# Dagster's chart starts its web server by this name: it gets the one behind our guard.
RUN printf '#!/bin/sh\nexec python -m tracks_dagster.defs.resources.webserver "$@"\n' > /opt/venv/bin/dagster-webserver
WORKDIR /app
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DAGSTER_HOME=/opt/dagster/dagster_home \
    TRACKS_HOME=/tracks
USER 10001:10001
CMD ["tracks", "--help"]
