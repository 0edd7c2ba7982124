FROM python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1 AS build
COPY pyproject.toml README.md LICENSE docker/requirements.txt docker/build-requirements.txt /src/
COPY dpsql /src/dpsql
# Nothing is installed but files of known hashes: what dpsql needs, what builds it, and then dpsql itself.
RUN python -m venv --without-pip /opt/dpsql \
    && pip install --no-cache-dir --require-hashes --requirement /src/build-requirements.txt \
    && pip --python /opt/dpsql/bin/python install --no-cache-dir --require-hashes --requirement /src/requirements.txt \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist /src \
    && pip --python /opt/dpsql/bin/python install --no-cache-dir --no-deps --no-index /dist/*.whl

FROM python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1
RUN useradd --uid 10001 dpsql && install --directory --owner=dpsql /data /scratch
COPY --from=build /opt/dpsql /opt/dpsql
ENV PATH=/opt/dpsql/bin:$PATH
USER dpsql
WORKDIR /data
VOLUME /data
EXPOSE 6543
ENTRYPOINT ["dpsql"]
