# benchgate as an image: built from the hash-locked requirements, run by a user without rights, fit for a read-only root.
#
#   docker build -t benchgate .
#   docker build -t benchgate --build-arg PROFILE=base .      without evals, the model that ships, and Postgres
#   docker run --rm --read-only --tmpfs /tmp --user "$(id -u):$(id -g)" -v "$PWD:/data" benchgate run suite.yaml
#
# A tag can be moved. In a build of your own write the digest behind it, as `docker buildx imagetools inspect` shows it.
# It is named once, in the first FROM: the only one that Dependabot renews.
FROM python:3.12-slim-trixie AS base

FROM base AS build
ARG PROFILE=action
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
WORKDIR /src
COPY requirements/ requirements/
# The locks are complete: nothing is resolved, and everything that is taken has one of the hashes written there.
RUN python -m venv /opt/benchgate
RUN /opt/benchgate/bin/pip install --no-deps --no-build-isolation --use-pep517 --require-hashes -r requirements/build.txt
RUN /opt/benchgate/bin/pip install --no-deps --no-build-isolation --use-pep517 --require-hashes -r requirements/${PROFILE}.txt
# A part of the load engine is compiled (hatch_build.py), by a compiler that no image needs afterwards.
RUN python -m venv /opt/compiler \
  && /opt/compiler/bin/pip install --no-deps --require-hashes -r requirements/compiler.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY benchgate/ benchgate/
COPY suites/ suites/
COPY reports/ reports/
COPY migrations/ migrations/
RUN CC="/opt/compiler/bin/python -m ziglang cc" \
  /opt/benchgate/bin/pip install --no-deps --no-build-isolation --no-index . \
  && /opt/benchgate/bin/pip check

FROM base
LABEL org.opencontainers.image.title="benchgate" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 benchgate \
  && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin benchgate \
  && install -d -o benchgate -g benchgate /data
COPY --from=build /opt/benchgate /opt/benchgate
ENV PATH=/opt/benchgate/bin:$PATH \
    HOME=/data \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Suites are read here, and the store, the reports and .benchgate/ written: mount a volume. Beside it only /tmp is used.
WORKDIR /data
USER 10001:10001
ENTRYPOINT ["benchgate"]
CMD ["--help"]
